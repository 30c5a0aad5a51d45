"""
Masks that are made as the logarithm of zeros and ones: their -Inf is as deliberate as one that is filled in.

A saturated probability is 0 or 1 as well. What tells them apart is who made the zeros: a comparison, `tril`, `zeros` or
the like, or a buffer; not arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dispatchmon.analysis.nonfinite.behaviour import behaviour
from dispatchmon.analysis.nonfinite.findings import ORIGIN
from dispatchmon.analysis.nonfinite.rows import Event, Row, events_by_number, operation, parameters_of
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
    found = {f.number: f for f in search.findings if f.kind == ORIGIN}
    inputs = {n: row for n, f in found.items() if (row := logarithm_of(search.events.get(f.event))) is not None}
    written_down = are_written_down(trace, rank, list(inputs.values()), search.names, search.parameters)
    for number, row in inputs.items():
        found[number].mask = row.event in written_down


def is_mask(trace: TraceFiles, rank: int, event: Event) -> bool:
    """The same for one event."""
    row = logarithm_of(event)
    if row is None:
        return False
    names = {row.storage: row.name} if row.name is not None and row.storage is not None else {}
    return row.event in are_written_down(trace, rank, [row], names, parameters_of(trace, rank))


def logarithm_of(event: Event | None) -> Row | None:
    """What an event makes the logarithm of, if that is zeros and ones."""
    if event is None or event.operation not in _LOGARITHMS:
        return None
    row = event.inputs[0] if event.inputs else None
    if row is None or row.zero is None or row.mean is None or not row.numel or (row.min, row.max) != (0, 1):
        return None
    ones = row.numel - row.zero  # no element is above 1: they all are 1 if they sum up to their number
    return row if abs(row.mean * row.numel - ones) < 1e-3 else None


def are_written_down(
    trace: TraceFiles, rank: int, rows: list[Row], names: Mapping[int, str], parameters: frozenset[str]
) -> set[int]:
    """Of these zeros and ones those that nobody calculated, by the event that read them."""
    unclear = [row for row in rows if row.is_float and not is_buffer(row, names, parameters)]
    calculated = {row.event for row in unclear}
    calculated -= {reader for reader, maker in makers_of(trace, rank, unclear).items() if writes_down(maker)}
    return {row.event for row in rows} - calculated


def is_buffer(row: Row, names: Mapping[int, str], parameters: frozenset[str]) -> bool:
    """Whether it is a buffer of the model."""
    name = names.get(row.storage if row.storage is not None else -1)
    return name is not None and bool(parameters) and name not in parameters and not name.endswith(".grad")


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
