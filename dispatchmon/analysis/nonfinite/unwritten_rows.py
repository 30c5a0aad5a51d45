"""
The rows whose numbers are of memory that nobody has written: what a buffer that is filled in pieces, a view of it or a copy of
it holds where it is not filled yet is no value of the program's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dispatchmon.analysis.nonfinite.behaviour import behaviour, reads
from dispatchmon.analysis.nonfinite.rows import ALLOCATORS, Row, events
from dispatchmon.analysis.nonfinite.unwritten import UnwrittenMemory
from dispatchmon.reading.batches import Range
from dispatchmon.reading.query import Filters, query
from dispatchmon.reading.trace_files import TraceFiles

_ALLOCATED = f"""
SELECT DISTINCT storage FROM trace
WHERE kind = 'op' AND role = 'output' AND storage IS NOT NULL
  AND (dtype LIKE '%float%' OR dtype LIKE 'complex%') AND regexp_matches(op, '{ALLOCATORS}')
"""


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
    columns = ("kind", "role", "storage", "dtype", "op")
    allocated = {row["storage"] for row in query(trace, _ALLOCATED, columns, within)}
    return _followed(trace, rank, allocated, within.ranges) if allocated else []


def _followed(trace: TraceFiles, rank: int, followed: set[int], within: Mapping[str, Range]) -> list[Key]:
    memory = UnwrittenMemory(lambda allocator, reader, written: 0, followed.add)
    found: list[Key] = []

    def shown(rows: list[Row]) -> None:
        measured = (row for row in rows if row.min is not None or row.nonfinite)
        found.extend(Key(row.event, row.role, row.arg) for row in measured if memory.unwritten(row) is not None)

    for event in events(trace, rank, followed, within):
        b = behaviour(event.first.op)
        shown(event.inputs)
        if b is None or not b.view or any(row.written for row in event.rows):
            memory.event(event, b, [row for row in event.inputs if reads(b, row)])
        shown(event.outputs)
    return found
