"""
Regions of memory, and what is known of each of their elements: which findings its non-finite value descends from.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.lib.stride_tricks import as_strided

from dispatchmon.analysis.nonfinite.rows import Row
from dispatchmon.memory.cells import Mask
from dispatchmon.memory.regions import itemsize

MOST_FOLLOWED = 1 << 22  # elements of a tensor, and of a storage, that are followed one by one
Labels = dict[int, Mask]  # number of a finding -> the elements that descend from it


def span(row: Row) -> tuple[int, int]:
    """First element of its storage that a tensor shows, and the one after the last."""
    offset = row.offset or 0
    if not row.numel:
        return offset, offset
    return offset, offset + 1 + sum((n - 1) * s for n, s in zip(row.shape or (), row.stride or (), strict=False))


def extent(row: Row) -> int:
    """
    How many flags it takes to follow a tensor: for each element of its storage up to its last one, and for each of its own.

    The second is more where an expanded tensor shows an element many times.
    """
    return max(span(row)[1], row.numel or 0)


class Pieces:
    """
    A flag for each piece of a storage, from its begin.

    A piece is as large as the smallest element that the storage was seen with: complex numbers and the real ones that they
    are made of share memory, and so do a tensor and its bytes.
    """

    __slots__ = ("flags", "size")

    def __init__(self, size: int, n: int) -> None:
        self.size = size  # bytes of a piece
        self.flags = np.zeros(n, bool)

    def end(self, row: Row) -> int:
        """The piece after the last one that a tensor shows; pieces become smaller if its elements are."""
        size = itemsize(row.dtype)
        if size < self.size:
            self.flags = np.repeat(self.flags, self.size // size)
            self.size = size
        return span(row)[1] * (size // self.size)

    def start(self, row: Row) -> int:
        """The first piece that a tensor shows."""
        return (row.offset or 0) * (itemsize(row.dtype) // self.size)

    def grow(self, n: int) -> None:
        """Have at least so many pieces; new ones have no flag."""
        if len(self.flags) < n:
            self.flags = np.concatenate((self.flags, np.zeros(n - len(self.flags), bool)))

    def of(self, row: Row) -> Mask:
        """The flags of a tensor's elements: a view of its shape and one more dimension, the pieces of each element."""
        end, many = self.end(row), itemsize(row.dtype) // self.size
        if row.shape is None or row.stride is None or end > len(self.flags):
            raise IndexError("the tensor reaches past the pieces that are known")
        flags = self.flags[self.start(row) :]
        return as_strided(flags, (*row.shape, many), (*(s * many for s in row.stride), 1))

    def any_of(self, row: Row) -> Mask:
        """The elements of which a piece has its flag."""
        return np.asarray(self.of(row).any(-1))

    def all_of(self, row: Row) -> Mask:
        """The elements whose pieces all have their flags."""
        return np.asarray(self.of(row).all(-1))

    def set(self, row: Row, flags: Mask | bool) -> None:
        """Give the elements of a tensor these flags."""
        self.of(row)[...] = flags[..., None] if isinstance(flags, np.ndarray) else flags


def covers(a: Row, b: Row) -> bool:
    """Whether the region of a contains that of b: exact if they are equal or a is dense."""
    if (a.offset, a.shape, a.stride) == (b.offset, b.shape, b.stride):
        return True
    (a0, a1), (b0, b1) = span(a), span(b)
    return (a.numel or 0) >= a1 - a0 and a0 <= b0 and b1 <= a1


@dataclass
class _Storage:
    cells: dict[int, Pieces] = field(default_factory=dict)  # per finding
    whole: set[int] = field(default_factory=set)  # findings whose elements are not told apart: the storage is too large


class Memory:
    """Per storage: the findings that its non-finite elements descend from."""

    def __init__(self) -> None:
        self.storages: dict[int, _Storage] = {}

    def read(self, row: Row, nonfinite: Mask) -> Labels:
        """The findings that the non-finite elements of a tensor descend from."""
        known = self.storages.get(row.storage if row.storage is not None else -1)
        if known is None or not row.placed:
            return {}
        found: Labels = dict.fromkeys(known.whole, nonfinite)
        for root, cells in known.cells.items():
            end = cells.end(row)
            if extent(row) <= MOST_FOLLOWED:
                cells.grow(end)
                mask = cells.any_of(row) & nonfinite
            elif cells.flags[cells.start(row) : end].any():  # where in it cannot be told
                mask = nonfinite
            else:
                continue
            if mask.any():
                found[root] = mask
        return found

    def write(self, row: Row, labels: Labels) -> None:
        """A tensor was written: its elements descend from these findings now, and from nothing else."""
        if not row.placed or row.storage is None or not row.numel:
            return
        known = self.storages.get(row.storage)
        if known is None:
            if not labels:
                return
            known = self.storages[row.storage] = _Storage()
        end = span(row)[1]
        if extent(row) > MOST_FOLLOWED:
            if row.numel == end:
                known.whole.clear()
            known.whole.update(labels)
            return
        for root in {*known.cells, *labels}:
            cells = known.cells.get(root)
            if cells is None:
                cells = known.cells[root] = Pieces(itemsize(row.dtype), end)
            cells.grow(cells.end(row))
            cells.set(row, labels.get(root, False))
            if root not in labels and not cells.flags.any():
                del known.cells[root]

    def add(self, row: Row, root: int, mask: Mask) -> None:
        """These elements of a tensor descend from one more finding."""
        if not row.placed or row.storage is None or not row.numel:
            return
        known = self.storages.setdefault(row.storage, _Storage())
        end = span(row)[1]
        if extent(row) > MOST_FOLLOWED:
            known.whole.add(root)
            return
        cells = known.cells.get(root)
        if cells is None:
            cells = known.cells[root] = Pieces(itemsize(row.dtype), end)
        cells.grow(cells.end(row))
        cells.set(row, cells.all_of(row) | mask)

    def forget(self, storage: int) -> None:
        """Nobody will look at this storage again."""
        self.storages.pop(storage, None)
