"""Writes whose result depends on the order in which a kernel walks through memory, from the rows of their events alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dispatchmon.analysis.audit.pointwise import is_pointwise
from dispatchmon.memory.regions import Region, itemsize, overlap, region, repeats
from dispatchmon.reading.query import Filters, query
from dispatchmon.reading.trace_files import TraceFiles

# These change what a tensor shows, and read no content.
_METADATA = frozenset(
    "as_strided_ detach_ resize_ set_ squeeze_ swapaxes_ swapdims_ t_ transpose_ unsqueeze_ resize_as_".split())  # fmt: skip
_LOOKED_AT = ("rank", "event", "kind", "mutation", "role", "storage", "written")
_NEEDED = (*_LOOKED_AT, "op", "arg", "offset", "shape", "stride", "dtype")


@dataclass(frozen=True)
class Overlap:
    """One event whose operands share memory."""

    rank: int
    event: int
    why: str


def overlapping_writes(
    trace: TraceFiles, filters: Filters, on_progress: Callable[[float], None] | None = None
) -> Iterator[Overlap]:
    """Find the events in which an operand is also what is written, in another place, or one cell is written many times."""
    for batch in trace.scan(_NEEDED, ranks=filters.ranks or None, on_progress=on_progress):
        yield from shared_operands(batch)
    sql = (
        "SELECT rank, op, shape, stride, dtype, min(event) AS event, list(DISTINCT event) AS events FROM trace "
        "WHERE kind = 'op' AND written AND role = 'input' AND list_contains(stride, 0) AND mutation <> 'none' "
        "GROUP BY ALL"
    )
    for row in query(trace, sql, _NEEDED, filters):
        if short_name(row["op"]) not in _METADATA and repeats(
            region(row["shape"], row["stride"], 0, itemsize(row["dtype"]))
        ):
            for event in row["events"]:
                yield Overlap(row["rank"], event, "several of its elements are one cell of memory")


def shared_operands(batch: Any) -> Iterator[Overlap]:
    """Events that write one tensor, and read the same memory through another argument."""
    column = {name: batch.column(name) for name in _LOOKED_AT}
    mutation = column["mutation"].to_numpy(zero_copy_only=False)
    operand = (
        (column["kind"].to_numpy(zero_copy_only=False) == "op")
        & np.isin(mutation, ("inplace", "out", "other"))
        & (column["role"].to_numpy(zero_copy_only=False) == "input")
        & column["storage"].is_valid().to_numpy(zero_copy_only=False)
    )
    at = np.flatnonzero(operand)
    if not len(at):
        return
    event = column["event"].to_numpy(zero_copy_only=False)[at]
    storage = column["storage"].fill_null(-1).to_numpy(zero_copy_only=False)[at]
    written = column["written"].to_numpy(zero_copy_only=False)[at]
    events, where, how_many = np.unique(event[written], return_index=True, return_counts=True)
    events, target = events[how_many == 1], storage[written][where][how_many == 1]
    place = np.minimum(np.searchsorted(events, event), max(len(events) - 1, 0))
    if not len(events):
        return
    shared = (events[place] == event) & (target[place] == storage) & ~written
    known: dict[Any, bool] = {}
    for one in np.unique(event[shared]).tolist():
        rows = batch.take(at[event == one]).to_pylist()
        target_row = next(row for row in rows if row["written"])
        op = target_row["op"]
        others = [r for r in rows if not r["written"] and r["storage"] == target_row["storage"]]
        if short_name(op) in _METADATA:
            continue
        key = op, place_of(target_row), tuple(map(place_of, others))
        if key not in known:
            theirs = region_of(target_row)
            known[key] = any(
                overlap(mine := region_of(o), theirs) and not (mine == theirs and is_pointwise(op)) for o in others
            )
        if known[key]:
            args = " and ".join(f"`{o['arg']}`" for o in others)
            yield Overlap(target_row["rank"], one, f"{args} {'reads' if len(others) == 1 else 'read'} the same memory")


def short_name(op: str) -> str:
    """`add_` of `aten.add_.Tensor`."""
    return op.split(".")[1] if "." in op else op


def place_of(row: dict[str, Any]) -> Any:
    """Where in its memory a row's tensor is."""
    return tuple(row["shape"] or ()), tuple(row["stride"] or ()), row["offset"], row["dtype"]


def region_of(row: dict[str, Any]) -> Region:
    """The bytes that a row's tensor covers."""
    return region(row["shape"] or (), row["stride"] or (), row["offset"] or 0, itemsize(row["dtype"]))
