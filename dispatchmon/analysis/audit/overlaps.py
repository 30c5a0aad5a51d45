"""Writes whose result depends on the order in which a kernel walks through memory, from the rows of their events alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dispatchmon.analysis.audit.pointwise import is_pointwise
from dispatchmon.memory.regions import Region, itemsize, overlap, region, repeats
from dispatchmon.reading.columns import Flags, Ints, Words, flags, numbers
from dispatchmon.reading.contents import Test
from dispatchmon.reading.query import Filters
from dispatchmon.reading.trace_files import TraceFiles

# These change what a tensor shows, and read no content.
_METADATA = frozenset(
    "as_strided_ detach_ resize_ set_ squeeze_ swapaxes_ swapdims_ t_ transpose_ unsqueeze_ resize_as_".split())  # fmt: skip
_LOOKED_AT = ("event", "kind", "mutation", "role", "storage", "written", "stride")
_NEEDED = (*_LOOKED_AT, "rank", "op", "arg", "offset", "shape", "dtype")
_DECLARED = ("inplace", "out", "other")
_WRITES = (*_DECLARED, "undeclared")


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

    def needs(batch: pa.RecordBatch) -> bool:
        return bool(repeated_at(batch).any() or shared_at(batch)[1].any())

    repeated: dict[Any, list[tuple[int, int]]] = {}
    for batch in trace.scan(
        _NEEDED, ranks=filters.ranks or None, within={"mutation": frozenset(_WRITES)},
        test=Test(_LOOKED_AT, needs), on_progress=on_progress,
    ):  # fmt: skip
        yield from shared_operands(batch)
        for row in batch.filter(pa.array(repeated_at(batch))).to_pylist():
            key = row["op"], tuple(row["shape"]), tuple(row["stride"]), row["dtype"]
            repeated.setdefault(key, []).append((row["rank"], row["event"]))
    for (op, shape, stride, dtype), events in repeated.items():
        if short_name(op) not in _METADATA and repeats(region(shape, stride, 0, itemsize(dtype))):
            for rank, event in events:
                yield Overlap(rank, event, "several of its elements are one cell of memory")


def repeated_at(batch: pa.RecordBatch) -> Flags:
    """The rows that write a tensor of which a dimension has no stride."""
    at = operands(batch, _WRITES) & flags(batch.column("written"))
    strides = batch.column("stride").filter(pa.array(at))
    has_none = np.zeros(len(strides), bool)
    has_none[np.asarray(pc.list_parent_indices(strides))[np.asarray(pc.list_flatten(strides)) == 0]] = True
    at[at] = has_none
    return at


def operands(batch: pa.RecordBatch, mutations: tuple[str, ...]) -> Flags:
    """The rows of what operators that write were given."""
    kind, mutation, role = (Words(batch.column(name)) for name in ("kind", "mutation", "role"))
    return np.asarray(kind.equal("op") & mutation.equal(*mutations) & role.equal("input"))


def shared_at(batch: pa.RecordBatch) -> tuple[Ints, Flags]:
    """Among the operands of operators that write one tensor: their rows, and which are in the memory that is written."""
    at = np.flatnonzero(operands(batch, _DECLARED) & flags(batch.column("storage").is_valid()))
    event, storage = (numbers(batch.column(name))[at] for name in ("event", "storage"))
    written = flags(batch.column("written"))[at]
    events, where, how_many = np.unique(event[written], return_index=True, return_counts=True)
    events, target = events[how_many == 1], storage[written][where][how_many == 1]
    if not len(events):
        return at, np.zeros(len(at), bool)
    place = np.minimum(np.searchsorted(events, event), len(events) - 1)
    return at, (events[place] == event) & (target[place] == storage) & ~written


def shared_operands(batch: pa.RecordBatch) -> Iterator[Overlap]:
    """Events that write one tensor, and read the same memory through another argument."""
    at, shared = shared_at(batch)
    event = numbers(batch.column("event"))[at]
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
