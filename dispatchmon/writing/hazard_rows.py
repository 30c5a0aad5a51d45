"""Rows of kind `hazard`: what the audit found while recording."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dispatchmon.schema import COLUMN_NAMES, SCHEMA
from dispatchmon.writing.columns import Ints
from dispatchmon.writing.tally import Tally


def with_undeclared(
    batch: pa.RecordBatch, found: list[tuple[int, int, int, int]], copied: Iterable[pa.RecordBatch], tally: Tally
) -> pa.RecordBatch:
    """
    Add a row for each value that changed though no operator wrote it: a copy of the row that noticed it.

    Args:
        batch: the rows of a batch.
        found: event, event before, event after, storage.
        copied: rows of the same batch that were written before, as copies.
        tally: counts the rows that are added.
    """
    extra = []
    for number, before, after, storage in found:
        noticed = (pc.field("event") == after) & (pc.field("storage") == storage)
        rows = [row for part in (*copied, batch) for row in part.filter(noticed).slice(0, 1).to_pylist()]
        extra += [
            {**row, "event": number, "kind": "hazard", "arguments": "{}", "mutation": "undeclared", "role": "silent",
             "written": True, "forward_event": before, "cause_event": after} for row in rows]  # fmt: skip
    if not extra:
        return batch
    tally.undeclared += len(extra)
    tally.rows += len(extra)
    tally.events += len(extra)
    return pa.Table.from_batches([batch, pa.RecordBatch.from_pylist(extra, SCHEMA)]).combine_chunks().to_batches()[0]


def with_hazards(batch: pa.RecordBatch, event: Ints, found: dict[int, tuple[int, int]], tally: Tally) -> pa.RecordBatch:
    """Findings were packed as copies of the events that wrote (`found`, by event): say of them what they are."""
    of_hazard = np.isin(event, list(found))
    pairs = np.array([found.get(e, (-1, -1)) for e in event.tolist()], np.int64).reshape(-1, 2)
    columns = {name: batch.column(name) for name in batch.schema.names}
    mask = pa.array(of_hazard)
    columns["kind"] = pc.if_else(mask, "hazard", columns["kind"])
    columns["cause_event"] = pc.if_else(mask, pa.array(pairs[:, 0], mask=~of_hazard), columns["cause_event"])
    victim = pa.array(pairs[:, 1], mask=pairs[:, 1] < 0)
    columns["forward_event"] = pc.if_else(mask, victim, columns["forward_event"])
    columns["duration_ns"] = pc.if_else(mask, pa.scalar(None, pa.int64()), columns["duration_ns"])
    tally.hazards += len(found)
    firsts = pc.and_(mask, pc.not_equal(batch.column("mutation"), "none"))
    tally.writes -= pc.and_(firsts, batch.column("arguments").is_valid()).true_count
    return pa.RecordBatch.from_arrays([columns[name] for name in COLUMN_NAMES], schema=SCHEMA)
