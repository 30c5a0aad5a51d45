"""
Memory that is not written yet: which elements of an `empty` tensor have been written, who reads the others, and what their
values reach.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dispatchmon.analysis.nonfinite.behaviour import Behaviour, of_argument
from dispatchmon.analysis.nonfinite.memory import Memory, Pieces, extent, span
from dispatchmon.analysis.nonfinite.rows import FINITE_MAX, Event, Row
from dispatchmon.memory.cells import Mask
from dispatchmon.memory.regions import itemsize

MOST_ELEMENTS = 50_000_000  # of an allocation that is followed
MOST_IN_ALL = 1_000_000_000  # of all that are followed at a time


@dataclass
class Fresh:
    """Memory that was allocated and not filled: its allocator, and which elements have been written since."""

    allocator: Row
    written: Pieces

    def has(self, row: Row) -> bool:
        """Whether a tensor lies within the memory, and each of its elements can be looked at."""
        return extent(row) <= MOST_ELEMENTS and self.written.end(row) <= len(self.written.flags)


class UnwrittenMemory:
    """Follows the elements of memory that was allocated unwritten."""

    def __init__(self, found: Callable[[Row, Row, float], int], follow: Callable[[int], None]) -> None:
        self.found, self.follow = found, follow
        self.fresh: dict[int, Fresh] = {}
        self.tainted = Memory()  # values that unwritten elements had a part in
        self.left: set[int] = set()  # findings whose values left for Python: `item`

    def unwritten(self, row: Row) -> tuple[Row, Mask] | None:
        """The allocator of a tensor's memory, and which elements nobody has written; None if all are."""
        known = self.fresh.get(row.storage if row.storage is not None else -1)
        if known is None or not row.placed or not row.numel or not known.has(row):
            return None
        missing = ~known.written.all_of(row)
        return (known.allocator, missing) if missing.any() else None

    def event(self, event: Event, b: Behaviour | None, used: list[Row]) -> None:
        """Follow one event that is not a view."""
        op, outs = event.first.op, event.outputs
        if op.startswith("aten.set_"):  # the tensor shows other memory now; nothing was moved there
            return
        moves = (b is not None and b.moves) or op.startswith("aten._to_copy")
        single = sum(row.is_float for row in used) == 1
        taint: set[int] = set()
        for row in used:
            argument = of_argument(b, row.arg)
            known = set(self.tainted.read(row, np.broadcast_to(np.True_, row.shape or ())))
            if known and not (moves and argument.ignores):
                taint |= known
                if "_local_scalar" in op:
                    self.left |= known
            if b is not None and argument.kept:
                continue
            missing = self.unwritten(row)
            if missing is None:
                continue
            allocator, absent = missing
            if moves:
                self.moved(event, row, allocator, ~absent, single)
            else:
                taint.add(self.found(allocator, row, 1.0 - float(absent.mean())))
        for out in outs:
            self.result(event, b, out, used, taint, moves and single)

    def moved(self, event: Event, row: Row, allocator: Row, written: Mask, single: bool) -> None:
        """Unwritten elements were only moved: where they are now is as unwritten."""
        op = event.first.op
        for out in event.outputs:
            if op.startswith(("aten.cat.", "aten.stack.")):
                self.joined(event, allocator, out, row, written)
            elif single and out.numel == row.numel and out.stride is not None and out.storage != row.storage:
                self.allocate(allocator, out, written)
            elif single and not written.any():
                self.allocate(allocator, out, None)

    def result(
        self, event: Event, b: Behaviour | None, out: Row, used: list[Row], taint: set[int], moved: bool
    ) -> None:
        """What a result's memory holds now."""
        storage = out.storage
        if storage is None:
            return
        if taint and out.is_float:
            everywhere = np.broadcast_to(np.True_, out.shape or ())
            self.tainted.write(out, dict.fromkeys(taint, everywhere))
            self.follow(storage)
        elif out.written or storage in self.tainted.storages:
            self.tainted.write(out, {})
        if event.allocates:
            if out.is_float and out.placed:
                self.allocate(event.first if not out.written else out, out, self.kept_by_resize(event, out))
            return
        known = self.fresh.get(storage)
        if known is None or not out.written or not out.placed or not out.numel:
            return
        if moved and any(row.storage in self.fresh and row.storage != storage for row in used):
            return
        if known.has(out):
            known.written.set(out, True)
        if known.written.flags.all():
            del self.fresh[storage]

    def kept_by_resize(self, event: Event, out: Row) -> Mask | None:
        """`resize_` keeps what there was: only the elements that were added are unwritten."""
        before = next((row for row in event.inputs if out.written and row.storage == out.storage), None)
        if before is None or not before.numel or out.shape is None or extent(out) > MOST_ELEMENTS:
            return None
        written = Pieces(itemsize(out.dtype), span(out)[1])
        known = self.fresh.get(out.storage if out.storage is not None else -1)
        kept = min(span(before)[1], len(written.flags))
        if known is None or known.written.end(before) != span(before)[1]:
            written.flags[:kept] = True
        else:
            written.flags[:kept] = known.written.flags[:kept]
        return written.all_of(out)

    def joined(self, event: Event, allocator: Row, out: Row, part: Row, written: Mask) -> None:
        """`cat` and `stack`: the unwritten elements keep their place along the dimension."""
        parts, shape = [r for r in event.inputs if r.shape != (0,)], out.shape
        dim = event.arguments.get("dim", 0)
        at = next((i for i, each in enumerate(parts) if each is part), None)
        if shape is None or not isinstance(dim, int) or at is None or not shape:
            return
        dim %= len(shape)
        if event.first.op.startswith("aten.stack"):
            widths, written = [1] * len(parts), np.expand_dims(written, dim)
        elif all(each.shape and len(each.shape) == len(shape) for each in parts):
            widths = [each.shape[dim] for each in parts if each.shape]
        else:
            return
        if not out.placed or extent(out) > MOST_ELEMENTS:
            return
        known = self.fresh.get(out.storage if out.storage is not None else -1)
        if known is not None and known.has(out):
            cells = known.written.all_of(out)
        else:
            cells = np.ones(shape, bool)
        start = sum(widths[:at])
        place = cells[(slice(None),) * dim + (slice(start, start + widths[at]),)]
        if place.shape == written.shape:
            place[...] = written
            self.allocate(allocator, out, cells)

    def allocate(self, allocator: Row, row: Row, written: Mask | None) -> None:
        """From here on a tensor's memory is unwritten, but for these elements."""
        size = span(row)[1]
        if not row.numel or extent(row) > MOST_ELEMENTS or row.storage is None or not FINITE_MAX.get(row.dtype or ""):
            return
        if size + sum(len(fresh.written.flags) for fresh in self.fresh.values()) > MOST_IN_ALL:
            return
        pieces = Pieces(itemsize(row.dtype), size)
        if written is not None:
            pieces.set(row, written.reshape(row.shape or ()))
            if pieces.all_of(row).all():
                self.fresh.pop(row.storage, None)
                return
        self.fresh[row.storage] = Fresh(allocator, pieces)
        self.follow(row.storage)

    def forget(self, storage: int) -> None:
        """Nobody will look at this storage again."""
        self.fresh.pop(storage, None)
