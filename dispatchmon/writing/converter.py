"""
Packed records to record batches, by columns: numpy on the integers, `take` on small tables of what they mean.

No Python object is made per row, so a thread that does this holds the interpreter lock for microseconds at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatchmon.packed import records as r
from dispatchmon.packed.batch import Batch
from dispatchmon.schema import COLUMN_NAMES, PHASES, SCHEMA
from dispatchmon.words.harmless import storable
from dispatchmon.writing.columns import Ints, columns_of_tables
from dispatchmon.writing.contexts import KnownContexts
from dispatchmon.writing.hazard_rows import with_hazards, with_undeclared
from dispatchmon.writing.measured import cells_of, digests_of, statistics_of
from dispatchmon.writing.tally import Tally


class Converter:
    """Keeps what numbers stand for from batch to batch, and turns each batch into a record batch of the trace's schema."""

    def __init__(self, rank: int, start: int, stats: Iterable[str]) -> None:
        self.rank, self.start, self.stats = rank, start, frozenset(stats)
        self.tally = Tally()
        self.columns = columns_of_tables()
        self.labels: list[tuple[str, tuple[tuple[int, tuple[int, ...], str], ...]]] = []
        self.owners: dict[int, str] = {}
        self.contexts = KnownContexts()
        self.phases = pa.array(PHASES)
        self.number = 0  # of the batch that comes next
        self.next_event = 0  # those before it were converted
        self.learned: dict[str, int] = {}  # items that the tables of a copy had, which the batch has again
        self.copied: list[pa.RecordBatch] = []  # of this batch

    # ------------------------------------------------------------------------------------------------- tables
    def learn(self, tables: dict[str, Any]) -> None:
        """Take in what is new in the tables."""
        known = self.learned
        for table, columns in self.columns.items():
            base, new = tables[table]
            for column in columns.values():
                column.update(base, new[known.get(table, 0) :])
        for device, names in tables["labels"][1][known.get("labels", 0) :]:
            self.labels.append((device, tuple((*place, storable(name)) for *place, name in names)))
        contexts = np.frombuffer(tables["contexts"], np.int64).reshape(-1, r.CONTEXT_FIELDS)
        positions = np.frombuffer(tables["positions"], np.int64).reshape(-1, r.POSITION_FIELDS)
        self.learned = {name: len(tables[name][1]) for name in self.columns}
        self.learned |= {"contexts": len(contexts), "positions": len(positions)}
        self.contexts.learn(contexts[known.get("contexts", 0) :], positions[known.get("positions", 0) :])

    # ------------------------------------------------------------------------------------------------- one batch
    def convert(self, batch: Batch) -> pa.RecordBatch:
        """The batch as columns of the trace, without the events that a copy of it has shown already."""
        result = with_undeclared(
            self.convert_new(batch, copied=False), batch.undeclared, self.copied, self.tally)  # fmt: skip
        self.next_event = max([self.next_event, *(found[0] + 1 for found in batch.undeclared)])
        self.number, self.learned, self.copied = batch.number + 1, {}, []
        self.contexts.forget()
        return result

    def convert_copy(self, batch: Batch) -> pa.RecordBatch | None:
        """The events of a copy up to the first that is not over yet; None if that is nothing new."""
        if batch.number != self.number:  # the one before it is still on its way
            return None
        result = self.convert_new(batch, copied=True)
        if batch.digests:
            self.copied.append(result)
        return result if result.num_rows else None

    def convert_new(self, batch: Batch, copied: bool) -> pa.RecordBatch:
        self.learn(batch.tables)
        events = np.frombuffer(batch.events, np.int64).reshape(-1, r.EVENT_FIELDS)
        rows = np.frombuffer(batch.rows, np.int64).reshape(-1, r.ROW_FIELDS)
        if len(events) > 1 and (np.diff(events[:, 0]) < 0).any():  # operators inside operators end first
            events = events[np.argsort(events[:, 0], kind="stable")]
        events = events[np.searchsorted(events[:, 0], self.next_event) :]
        if copied:
            expected = np.arange(self.next_event, self.next_event + len(events))
            events = events[: len(events) if (same := events[:, 0] == expected).all() else int(same.argmin())]
        digest = digests_of(batch.digests, len(rows))
        if len(rows) and not (whole := np.isin(rows[:, 0], events[:, 0])).all():
            rows, digest = rows[whole], digest.filter(pa.array(whole))
        event, operator, literal, context, number, node, source, began, duration = np.ascontiguousarray(events.T)
        self.next_event = int(event[-1]) + 1 if len(event) else self.next_event
        self.contexts.note_nodes(event, number, source)

        alone = self.tensorless(event, rows)
        if len(alone):
            rows = np.concatenate((rows, alone))
            digest = pa.concat_arrays([digest, pa.nulls(len(alone), pa.uint64())])
        row_event = rows[:, 0]
        if len(row_event) > 1 and (np.diff(row_event) < 0).any():
            order = np.argsort(row_event, kind="stable")
            rows, digest = rows[order], digest.take(pa.array(order))
        row_event, argument, geometry, value, label, slot = np.ascontiguousarray(rows.T)
        seen = argument >= 0
        index = np.searchsorted(event, row_event)
        first = np.diff(row_event, prepend=-1) != 0

        place, phase, forward_event, known, source = self.contexts.of(context, node, source)
        contexts = self.contexts
        at_place, at_context = contexts.packed[place[index]], contexts.packed[(context - contexts.base)[index]]
        module, call = self.columns["modules"]["name"].take(at_place[:, 0]), at_place[:, 1]
        if (owner := self.owner_of(node)) is not None:
            owner = owner.take(pa.array(index))
            module = pc.coalesce(owner, module)
            call = np.where(owner.is_valid().to_numpy(zero_copy_only=False), -1, call)
        n = len(rows)
        operators, geometries = self.columns["operators"], self.columns["geometries"]
        arguments = self.columns["arguments"]
        duration = duration[index]
        operator = operator[index]
        has_storage = seen & (value >= 0)
        columns: dict[str, Any] = {
            "event": row_event,
            "kind": operators["kind"].take(operator),
            "rank": np.full(n, self.rank, np.int32),
            "step": at_context[:, 2].astype(np.int32),
            "micro_step": at_context[:, 3].astype(np.int32),
            "phase": self.phases.take(pa.array(phase[index])),
            "module": module,
            "module_call": pa.array(call.astype(np.int32), mask=call < 0),
            "op": operators["name"].take(operator),
            "arguments": self.columns["literals"]["json"].take(literal[index], first),
            "mutation": operators["mutation"].take(operator),
            "role": arguments["role"].take(argument, seen),
            "arg": arguments["name"].take(argument, seen),
            "written": arguments["written"].take(argument, seen).fill_null(False),
            "storage": pa.array(value >> r.VERSION_BITS, mask=~has_storage),
            "version": pa.array(value & ((1 << r.VERSION_BITS) - 1), mask=~has_storage),
            "name": self.names(label, geometry, seen),
            "dtype": geometries["dtype"].take(geometry, seen),
            "device": self.columns["labels"]["device"].take(label, seen),
            "shape": geometries["shape"].take(geometry, seen),
            "stride": geometries["stride"].take(geometry, seen),
            "offset": geometries["offset"].take(geometry, seen),
            "numel": geometries["numel"].take(geometry, seen),
            **statistics_of(slot, batch.blocks, self.stats),
            "digest": digest,
            "start_ns": began[index] - self.start,
            "duration_ns": pa.array(duration, mask=duration < 0),
            "forward_event": pa.array(forward_event[index], mask=~known[index]),
            "source": self.columns["sources"]["line"].take(source[index]),
            "caller": self.columns["sources"]["line"].take(at_place[:, 5]),
            "training": pa.array(at_place[:, 6] == 1, mask=at_place[:, 6] < 0),
            "cause_event": pa.array(r.ALERT - duration, mask=duration > r.ALERT),
            "cells": cells_of(batch.cells, slot),
        }
        arrays = [c if isinstance(c, pa.Array) else pa.array(c) for c in (columns[name] for name in COLUMN_NAMES)]
        result = pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
        self.tally.count(result, event, slot, seen, columns)
        return with_hazards(result, row_event, batch.hazards, self.tally) if batch.hazards else result

    @staticmethod
    def tensorless(event: Ints, rows: Ints) -> Ints:
        """A row for each event that saw no tensor."""
        alone = event[~np.isin(event, rows[:, 0])]
        extra = np.full((len(alone), r.ROW_FIELDS), -1, np.int64)
        extra[:, 0] = alone
        return extra

    def owner_of(self, node: Ints) -> pa.Array | None:
        """Of operators that accumulate a gradient: the module that owns the parameter."""
        accumulates = (node <= r.ACCUMULATE) & (node > r.RECOMPUTED)
        if not accumulates.any():
            return None
        labels = np.where(accumulates, r.ACCUMULATE - node, 0)
        for label in np.unique(labels).tolist():
            if label not in self.owners and self.labels[label][1]:
                self.owners[label] = self.labels[label][1][-1][2].rpartition(".")[0]
        owners = [self.owners.get(label) for label in labels.tolist()]
        return pa.array(owners, pa.utf8(), mask=~accumulates)

    def names(self, label: Ints, geometry: Ints, seen: npt.NDArray[np.bool_]) -> pa.Array:
        """A name belongs to the tensor with its own place in the memory and shape, not to every view of it."""
        named = self.columns["labels"]["named"].at(np.maximum(label, 0)) & seen
        pairs, where = np.unique(np.where(named, label << 32 | geometry, -1), return_inverse=True)
        geometries = self.columns["geometries"]
        found: list[str | None] = []
        for pair in pairs.tolist():
            name = None
            if pair >= 0:
                at = (pair & 0xFFFFFFFF) - geometries["shape"].base
                shape, offset = geometries["shape"].array[at].as_py(), geometries["offset"].array[at].as_py()
                place = offset, None if shape is None else tuple(shape)
                name = next((n for o, s, n in self.labels[pair >> 32][1] if (o, s) == place), None)
            found.append(name)
        return pa.array(found, pa.utf8()).take(pa.array(where.reshape(-1)))
