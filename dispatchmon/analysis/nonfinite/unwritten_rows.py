"""
The rows whose numbers are of memory that nobody has written: what a buffer that is filled in pieces, a view of it or a copy of
it holds where it is not filled yet is no value of the program's.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dispatchmon.analysis.nonfinite.behaviour import behaviour, reads
from dispatchmon.analysis.nonfinite.rows import ALLOCATORS, Row, events
from dispatchmon.analysis.nonfinite.unwritten import UnwrittenMemory
from dispatchmon.reading.columns import Ints, Words, numbers
from dispatchmon.reading.contents import Test, Within
from dispatchmon.reading.query import Filters, query
from dispatchmon.reading.trace_files import TraceFiles

# What these, and `out=`, find is read by nobody: an earlier result, or memory that holds anything at all.
OVERWRITE = (
    "copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_", "cauchy_", "log_normal_",
    "geometric_")  # fmt: skip
READ = (
    "coalesce(NOT (written AND role = 'input' AND "
    f"(mutation = 'out' OR regexp_matches(op, '^aten\\.({'|'.join(OVERWRITE)})\\.'))), true)"
)
# Memory that was allocated unwritten, but for what was filled whole before anything else looked at it, as most is.
_ALLOCATED = f"""
SELECT storage FROM (
    SELECT storage, event, numel, {READ} AS read, written AND role = 'output' AS wrote,
        role = 'output' AND (dtype LIKE '%float%' OR dtype LIKE 'complex%') AND regexp_matches(op, '{ALLOCATORS}') AS fresh
    FROM trace WHERE kind = 'op' AND storage IN (SELECT unnest($storages)))
GROUP BY storage
HAVING count(*) FILTER (fresh) > 0 AND count(*) FILTER (NOT fresh) > 0 AND NOT coalesce(
    count(*) FILTER (fresh) = 1
    AND min(event) FILTER (NOT fresh AND wrote) = min(event) FILTER (NOT fresh AND read)
    AND arg_min(numel, event) FILTER (NOT fresh AND wrote) = max(numel) FILTER (fresh), false)
"""
_COLUMNS = ("kind", "event", "op", "mutation", "role", "written", "storage", "numel", "dtype")


class Key(NamedTuple):
    """What names a row of a rank."""

    event: int
    role: str | None
    arg: str | None


def unwritten_rows(trace: TraceFiles, rank: int, filters: Filters) -> list[Key]:
    """
    The rows of one rank that show an element which nobody had written then, and numbers with it.

    Args:
        trace: the trace.
        rank: the rank.
        filters: of these only the ranges count: what lies outside of them is not read.
    """
    within = Filters(ranks=(rank,), steps=filters.steps, events=filters.events)
    candidates = _allocated(trace, rank, within.ranges)
    if not len(candidates):
        return []

    def touches(batch: pa.RecordBatch) -> bool:
        return bool(np.isin(numbers(batch.column("storage")), candidates).any())

    values, test = {"storages": candidates.tolist()}, Test(("storage",), touches)
    found = query(trace, _ALLOCATED, _COLUMNS, within, values=values, test=test)
    allocated = {row["storage"] for row in found}
    return _followed(trace, rank, allocated, within.ranges) if allocated else []


def _allocated(trace: TraceFiles, rank: int, within: Within) -> Ints:
    """The storages that an operator allocated unwritten, for numbers that may be none."""

    def allocates(batch: pa.RecordBatch) -> bool:
        return bool(Words(batch.column("op")).matching(ALLOCATORS).any())

    found = [np.zeros(0, np.int64)]
    test = Test(("op",), allocates)
    for batch in trace.scan(("kind", "op", "role", "dtype", "storage"), ranks=(rank,), within=within, test=test):
        column = batch.column
        fresh = Words(column("op")).matching(ALLOCATORS) & Words(column("kind")).equal("op")
        fresh &= Words(column("role")).equal("output") & Words(column("dtype")).matching("float|^complex")
        found.append(np.unique(numbers(column("storage"))[fresh]))
    storages = np.unique(np.concatenate(found))
    return np.asarray(storages[storages >= 0])


def _followed(trace: TraceFiles, rank: int, followed: set[int], within: Within) -> list[Key]:
    memory = UnwrittenMemory(lambda allocator, reader, written: 0, followed.add)
    found: list[Key] = []

    def shown(rows: list[Row]) -> None:
        measured = (row for row in rows if row.min is not None or row.nonfinite)
        found.extend(Key(row.event, row.role, row.arg) for row in measured if memory.unwritten(row) is not None)

    for event in events(trace, rank, followed, within=within):
        b = behaviour(event.first.op)
        shown(event.inputs)
        if b is None or not b.view or any(row.written for row in event.rows):
            memory.event(event, b, [row for row in event.inputs if reads(b, row)])
        shown(event.outputs)
    return found
