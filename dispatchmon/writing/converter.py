"""
Packed records to record batches, by columns: numpy on the integers, `take` on small tables of what they mean.

No Python object is made per row, so a thread that does this holds the interpreter lock for microseconds at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatchmon.attribution.sources import described
from dispatchmon.packed import records as r
from dispatchmon.schema import COLUMN_NAMES, PHASES, SCHEMA, STATISTICS
from dispatchmon.statistics import reductions as s

Ints = npt.NDArray[np.int64]
# Autograd numbers and contexts that are remembered, together 48 MB; older nodes have no forward event any more.
MOST_NODES = 1 << 19
REASONS = {
    r.UNSUPPORTED: "values of a kind that has no statistics",
    r.UNREADY: "values not there yet (memory that was not written)",
    r.IN_FLIGHT: "results of collectives that were still in flight",
    r.UNTIL_WAIT: "results of collectives that were still in flight",
    r.TABLE_FULL: "values beyond the statistics table of a batch",
    r.FAILED: "values whose measurement failed",
}


@dataclass
class Batch:
    """What the hot path hands over: packed records, the tables of statistics they refer to, what is new in the tables."""

    number: int
    events: bytes
    rows: bytes
    blocks: list[tuple[int, npt.NDArray[np.float64]]]
    tables: dict[str, Any]
    digests: dict[int, int] = field(default_factory=dict)  # by number of the row
    undeclared: list[tuple[int, int, int, int]] = field(
        default_factory=list
    )  # event, event before, event after, storage
    cells: dict[int, bytes] = field(default_factory=dict)  # by slot: where non-finite elements lie
    hazards: dict[int, tuple[int, int]] = field(default_factory=dict)  # by event: event that wrote, event of the victim


class Column:
    """A table as a growing Arrow array; what was forgotten is dropped."""

    def __init__(self, type_: pa.DataType, item: Callable[[Any], Any] = lambda item: item) -> None:
        self.item, self.type = item, type_
        self.base, self.array = 0, pa.array([], type_)

    def update(self, base: int, new: list[Any]) -> None:
        if new:
            self.array = pa.concat_arrays([self.array, pa.array([self.item(each) for each in new], self.type)])
        if base > self.base and base - self.base <= len(self.array):
            self.array, self.base = self.array.slice(base - self.base), base

    def take(self, numbers: Ints, valid: npt.NDArray[np.bool_] | None = None) -> pa.Array:
        indices = numbers - self.base
        gone = indices < 0  # forgotten: unknown by now
        return self.array.take(pa.array(indices, mask=gone if valid is None else gone | ~valid))

    def at(self, numbers: Ints) -> Any:
        return self.array.to_numpy(zero_copy_only=False)[numbers - self.base]


@dataclass
class Tally:
    """What the closing statement and the closing line say."""

    events: int = 0
    rows: int = 0
    writes: int = 0
    hazards: int = 0  # findings of the audit
    undeclared: int = 0  # values that changed though no operator wrote them
    values: int = 0  # rows that show a tensor
    skipped: dict[str, int] = field(default_factory=dict)
    steps: int = 0
    last_step: int = -1
    first_nonfinite: dict[str, Any] | None = None

    def skip(self, reason: str, how_many: int = 1) -> None:
        if how_many:
            self.skipped[reason] = self.skipped.get(reason, 0) + how_many

    def copy(self) -> Tally:
        return replace(self, skipped=dict(self.skipped))


def text(get: Callable[[Any], Any]) -> Column:
    """A column of strings."""
    return Column(pa.utf8(), get)


class Converter:
    """Keeps what numbers stand for from batch to batch, and turns each batch into a record batch of the trace's schema."""

    def __init__(self, rank: int, start: int, stats: Iterable[str]) -> None:
        self.rank, self.start, self.stats = rank, start, frozenset(stats)
        self.tally = Tally()
        i64 = pa.int64()
        self.columns: dict[str, dict[str, Column]] = {
            "operators": {
                "name": text(lambda o: o[0]),
                "mutation": text(lambda o: o[1]),
                "kind": text(lambda o: o[2] if len(o) > 2 else "op"),
            },
            "arguments": {
                "role": text(lambda a: a[0]),
                "name": text(lambda a: a[1]),
                "written": Column(pa.bool_(), lambda a: a[2]),
            },
            "literals": {"json": text(lambda t: t)},
            "geometries": {
                "shape": Column(pa.list_(i64), lambda g: g[0]),
                "stride": Column(pa.list_(i64), lambda g: g[1]),
                "offset": Column(i64, lambda g: g[2]),
                "dtype": text(lambda g: None if g[3] is None else str(g[3]).removeprefix("torch.")),
                "numel": Column(i64, lambda g: g[4]),
            },
            "labels": {"device": text(lambda x: x[0]), "named": Column(pa.bool_(), lambda x: bool(x[1]))},
            "modules": {"name": text(lambda m: m)},
            "sources": {"line": text(lambda c: None if c is None else described(*c))},
        }
        self.labels: list[tuple[str, tuple[tuple[int, tuple[int, ...], str], ...]]] = []
        self.owners: dict[int, str] = {}
        self.contexts: Ints = np.empty((0, r.CONTEXT_FIELDS), np.int64)
        self.context_base = 0
        self.positions: Ints = np.empty((0, r.POSITION_FIELDS), np.int64)
        self.nodes: Ints = np.empty((0, 3), np.int64)  # number, event, source: the operators that made a node
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
        self.labels += tables["labels"][1][known.get("labels", 0) :]
        contexts = np.frombuffer(tables["contexts"], np.int64).reshape(-1, r.CONTEXT_FIELDS)
        positions = np.frombuffer(tables["positions"], np.int64).reshape(-1, r.POSITION_FIELDS)
        self.learned = {name: len(tables[name][1]) for name in self.columns}
        self.learned |= {"contexts": len(contexts), "positions": len(positions)}
        contexts, positions = contexts[known.get("contexts", 0) :], positions[known.get("positions", 0) :]
        self.contexts = np.concatenate((self.contexts, contexts))
        self.positions = np.concatenate((self.positions, positions))[-MOST_NODES:]

    def note_nodes(self, event: Ints, number: Ints, source: Ints) -> None:
        """The first operator after a new autograd number is the one that made the node."""
        last = self.nodes[-1, 0] if len(self.nodes) else -1
        highest = np.maximum.accumulate(np.concatenate(([last], number)))
        made = np.flatnonzero(np.diff(highest) > 0)
        self.nodes = np.concatenate((self.nodes, np.stack((number[made], event[made], source[made]), axis=1)))[
            -MOST_NODES:
        ]

    # ------------------------------------------------------------------------------------------------- one batch
    def convert(self, batch: Batch) -> pa.RecordBatch:
        """The batch as columns of the trace, without the events that a copy of it has shown already."""
        result = self.with_undeclared(self.convert_new(batch, copied=False), batch.undeclared)
        self.next_event = max([self.next_event, *(found[0] + 1 for found in batch.undeclared)])
        self.number, self.learned, self.copied = batch.number + 1, {}, []
        if (excess := len(self.contexts) - MOST_NODES) > 0:
            self.contexts, self.context_base = self.contexts[excess:], self.context_base + excess
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
        digest = self.digests_of(batch.digests, len(rows))
        if len(rows) and not (whole := np.isin(rows[:, 0], events[:, 0])).all():
            rows, digest = rows[whole], digest.filter(pa.array(whole))
        event, operator, literal, context, number, node, source, began, duration = np.ascontiguousarray(events.T)
        self.next_event = int(event[-1]) + 1 if len(event) else self.next_event
        self.note_nodes(event, number, source)

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

        place, phase, forward_event, known, source = self.places(context, node, source)
        at_place, at_context = self.contexts[place[index]], self.contexts[(context - self.context_base)[index]]
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
            **self.statistics(slot, batch.blocks),
            "digest": digest,
            "start_ns": began[index] - self.start,
            "duration_ns": pa.array(duration, mask=duration < 0),
            "forward_event": pa.array(forward_event[index], mask=~known[index]),
            "source": self.columns["sources"]["line"].take(source[index]),
            "caller": self.columns["sources"]["line"].take(at_place[:, 5]),
            "training": pa.array(at_place[:, 6] == 1, mask=at_place[:, 6] < 0),
            "cause_event": pa.array(r.ALERT - duration, mask=duration > r.ALERT),
            "cells": self.cells_of(batch.cells, slot),
        }
        arrays = [c if isinstance(c, pa.Array) else pa.array(c) for c in (columns[name] for name in COLUMN_NAMES)]
        result = pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
        self.count(result, event, slot, seen, columns)
        return self.with_hazards(result, row_event, batch.hazards) if batch.hazards else result

    @staticmethod
    def digests_of(digests: dict[int, int], n: int) -> pa.Array:
        if not digests:
            return pa.nulls(n, pa.uint64())
        return pa.array([digests.get(i) for i in range(n)], pa.uint64())

    @staticmethod
    def cells_of(cells: dict[int, bytes], slot: Ints) -> pa.Array:
        if not cells:
            return pa.nulls(len(slot), pa.binary())
        known = np.sort(np.fromiter(cells, np.int64))
        at = np.minimum(np.searchsorted(known, slot), len(known) - 1)
        maps = pa.array([cells[each] for each in known.tolist()], pa.binary())
        return maps.take(pa.array(at, mask=known[at] != slot))

    def with_undeclared(self, batch: pa.RecordBatch, found: list[tuple[int, int, int, int]]) -> pa.RecordBatch:
        """Add a hazard row for each value that changed though no operator wrote it: a copy of the row that noticed it."""
        extra = []
        for number, before, after, storage in found:
            noticed = (pc.field("event") == after) & (pc.field("storage") == storage)
            rows = [row for part in (*self.copied, batch) for row in part.filter(noticed).slice(0, 1).to_pylist()]
            extra += [
                {**row, "event": number, "kind": "hazard", "arguments": "{}", "mutation": "undeclared", "role": "silent",
                 "written": True, "forward_event": before, "cause_event": after} for row in rows]  # fmt: skip
        if not extra:
            return batch
        self.tally.undeclared += len(extra)
        self.tally.rows += len(extra)
        self.tally.events += len(extra)
        return (
            pa.Table.from_batches([batch, pa.RecordBatch.from_pylist(extra, SCHEMA)]).combine_chunks().to_batches()[0]
        )

    def with_hazards(self, batch: pa.RecordBatch, event: Ints, found: dict[int, tuple[int, int]]) -> pa.RecordBatch:
        """Findings were packed as copies of the events that wrote: say of them what they are."""
        of_hazard = np.isin(event, list(found))
        pairs = np.array([found.get(e, (-1, -1)) for e in event.tolist()], np.int64).reshape(-1, 2)
        columns = {name: batch.column(name) for name in batch.schema.names}
        mask = pa.array(of_hazard)
        columns["kind"] = pc.if_else(mask, "hazard", columns["kind"])
        columns["cause_event"] = pc.if_else(mask, pa.array(pairs[:, 0], mask=~of_hazard), columns["cause_event"])
        victim = pa.array(pairs[:, 1], mask=pairs[:, 1] < 0)
        columns["forward_event"] = pc.if_else(mask, victim, columns["forward_event"])
        columns["duration_ns"] = pc.if_else(mask, pa.scalar(None, pa.int64()), columns["duration_ns"])
        self.tally.hazards += len(found)
        firsts = pc.and_(mask, pc.not_equal(batch.column("mutation"), "none"))
        self.tally.writes -= pc.and_(firsts, batch.column("arguments").is_valid()).true_count
        return pa.RecordBatch.from_arrays([columns[name] for name in COLUMN_NAMES], schema=SCHEMA)

    @staticmethod
    def tensorless(event: Ints, rows: Ints) -> Ints:
        """A row for each event that saw no tensor."""
        alone = event[~np.isin(event, rows[:, 0])]
        extra = np.full((len(alone), r.ROW_FIELDS), -1, np.int64)
        extra[:, 0] = alone
        return extra

    def places(self, context: Ints, node: Ints, source: Ints) -> tuple[Ints, Ints, Ints, npt.NDArray[np.bool_], Ints]:
        """Per event: the context that says its module, its phase, its forward event, whether that is known, its source."""
        foreign = node <= r.FOREIGN
        recomputed = (node <= r.RECOMPUTED) & ~foreign
        backward = node >= 0
        made = np.where(recomputed, r.RECOMPUTED - node, node)
        context = context - self.context_base
        phase = np.where(node == r.LIVE, self.contexts[context, 4], np.where(recomputed, r.RECOMPUTE, r.BACKWARD))

        found = np.searchsorted(self.nodes[:, 0], made, "right")
        known = backward & (found < len(self.nodes))
        if len(self.nodes):
            known &= made >= self.nodes[0, 0] - 1
            at = np.where(known, found, 0)
            forward_event = np.where(known, self.nodes[at, 1], -1)
            source = np.where(known, self.nodes[at, 2], source)
        else:
            forward_event = np.full(len(node), -1)

        place = context
        if len(self.positions):
            position = np.maximum(np.searchsorted(self.positions[:, 0], made, "right") - 1, 0)
            there = np.maximum(self.positions[position, 1] - self.context_base, 0)
            outside = recomputed & (self.contexts[context, 1] < 0)  # the region called no module yet
            place = np.where(backward | outside, there, context)
        if foreign.any():
            place = np.where(foreign, r.FOREIGN - node - self.context_base, place)
        return place, phase, forward_event, known, source

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

    def statistics(self, slot: Ints, blocks: list[tuple[int, npt.NDArray[np.float64]]]) -> dict[str, pa.Array]:
        """The totals that were kept for each row, as the columns of the trace."""
        measured, empty = slot >= 0, slot == r.EMPTY
        if blocks and measured.any():
            first = blocks[0][0]
            table = blocks[0][1] if len(blocks) == 1 else np.concatenate([block for _, block in blocks])
            t = np.ascontiguousarray(table[np.where(measured, slot - first, 0)].T)
        else:
            t = np.zeros((s.TOTALS, len(slot)))
        counted = measured & (t[s.COUNT] > 0)
        with np.errstate(all="ignore"):
            std = np.sqrt(t[s.M2] / t[s.COUNT])
        reals = {"min": t[s.MIN], "max": t[s.MAX], "mean": t[s.MEAN], "std": std, "norm": t[s.NORM]}
        counts = {"nan": t[s.NAN], "inf": t[s.INF], "posinf": t[s.POSINF], "zero": t[s.ZERO]}
        columns = {}
        for name in STATISTICS:
            if name not in self.stats:
                columns[name] = pa.nulls(len(slot), pa.float64() if name in reals else pa.int64())
            elif name in reals:
                columns[name] = pa.array(reals[name], mask=~(counted & np.isfinite(reals[name])))
            else:
                column = np.where(measured, counts[name], 0).astype(np.int64)
                columns[name] = pa.array(column, mask=~(measured | empty))
        return columns

    def count(
        self, batch: pa.RecordBatch, event: Ints, slot: Ints, seen: npt.NDArray[np.bool_], columns: dict[str, Any]
    ) -> None:
        """Keep the tally."""
        tally = self.tally
        tally.events += len(event)
        tally.rows += batch.num_rows
        new_steps = np.unique(columns["step"])
        new_steps = new_steps[new_steps > tally.last_step]  # steps never go back
        if len(new_steps):
            tally.steps, tally.last_step = tally.steps + len(new_steps), int(new_steps[-1])
        tally.values += int(seen.sum())
        first = columns["arguments"].is_valid()
        writes = pc.and_(first, pc.not_equal(columns["mutation"], "none"))
        tally.writes += writes.true_count
        for reason, words in REASONS.items():
            tally.skip(words, int((seen & (slot == reason)).sum()))
        if tally.first_nonfinite is None:
            for name in ("nan", "inf"):
                hits = np.flatnonzero(columns[name].fill_null(0).to_numpy(zero_copy_only=False))
                if len(hits) and (tally.first_nonfinite is None or hits[0] < tally.first_nonfinite["row"]):
                    row = batch.slice(int(hits[0]), 1).to_pylist()[0]
                    tally.first_nonfinite = {**row, "row": int(hits[0])}
