"""
Masks that are made as the logarithm of zeros and ones: their -Inf is as deliberate as one that is filled in.

A saturated probability is 0 or 1 as well. What tells them apart is who made the zeros: a comparison, `tril`, `zeros` or
the like, or a buffer; not arithmetic.
"""

from __future__ import annotations

from typing import Any

from dispatchmon.analysis.nonfinite.behaviour import behaviour
from dispatchmon.analysis.nonfinite.findings import ORIGIN, Finding
from dispatchmon.analysis.nonfinite.rows import Event, Row, events_by_number, operation
from dispatchmon.analysis.nonfinite.search import Search
from dispatchmon.reading.query import Filters, query
from dispatchmon.reading.trace_files import TraceFiles

_LOGARITHMS = frozenset({"log", "log2", "log10"})
_MAKERS = frozenset(
    "tril triu ones zeros full eye ones_like zeros_like full_like new_ones new_zeros new_full fill zero masked_fill".split()
)
_SQL = """
SELECT storage, event, op FROM trace
WHERE kind = 'op' AND role = 'output' AND list_contains($storages, storage) ORDER BY event
"""


def mark_masks(trace: TraceFiles, rank: int, search: Search) -> None:
    """Mark the logarithms of zeros and ones that somebody wrote down."""
    inputs = {f.number: row for f in search.findings if (row := logarithm_of(search, f)) is not None}
    unclear = {number: row for number, row in inputs.items() if row.is_float and not is_buffer(search, row)}
    makers = makers_of(trace, rank, list(unclear.values()))
    for number, row in inputs.items():
        maker = makers.get(row.event)
        if number not in unclear or maker is not None and writes_down(maker):
            search.findings[number].mask = True


def logarithm_of(search: Search, found: Finding) -> Row | None:
    """What a finding is the logarithm of, if that is zeros and ones."""
    event = search.events.get(found.event)
    if event is None or found.kind != ORIGIN or event.operation not in _LOGARITHMS:
        return None
    row = event.inputs[0] if event.inputs else None
    if row is None or row.zero is None or row.mean is None or not row.numel or (row.min, row.max) != (0, 1):
        return None
    ones = row.numel - row.zero  # no element is above 1: they all are 1 if they sum up to their number
    return row if abs(row.mean * row.numel - ones) < 1e-3 else None


def is_buffer(search: Search, row: Row) -> bool:
    """Whether it is a buffer of the model."""
    name = search.names.get(row.storage if row.storage is not None else -1)
    return name is not None and bool(search.parameters) and name not in search.parameters and not name.endswith(".grad")


def makers_of(trace: TraceFiles, rank: int, rows: list[Row]) -> dict[int, Event]:
    """Who wrote these values, by the event that read them."""
    storages = sorted({row.storage for row in rows if row.storage is not None})
    if not storages:
        return {}
    columns = ("kind", "role", "storage", "event", "op")
    written: dict[int, list[dict[str, Any]]] = {}
    for each in query(trace, _SQL, columns, Filters(ranks=(rank,)), values={"storages": storages}):
        b = behaviour(each["op"])
        if b is None or not b.view:
            written.setdefault(each["storage"], []).append(each)
    last = {
        row.event: next(
            (w["event"] for w in reversed(written.get(row.storage or 0, [])) if w["event"] < row.event), None
        )
        for row in rows
    }
    found = events_by_number(trace, rank, {event for event in last.values() if event is not None})
    return {reader: found[event] for reader, event in last.items() if event in found}


def writes_down(maker: Event) -> bool:
    """Whether an operator makes zeros and ones that were not calculated."""
    if maker.operation == "_to_copy":
        return not any(row.is_float for row in maker.inputs)
    return operation(maker.first.op) in _MAKERS
