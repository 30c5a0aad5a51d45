"""
Regions of memory, and what is known of each of their elements: which findings its non-finite value descends from.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.lib.stride_tricks import as_strided

from dispatchmon.analysis.nonfinite.rows import Row
from dispatchmon.memory.cells import Mask

MOST_SPAN = 1 << 22  # elements of a storage that is followed element by element
Labels = dict[int, Mask]  # number of a finding -> the elements that descend from it


def span(row: Row) -> tuple[int, int]:
    """First element of its storage that a tensor shows, and the one after the last."""
    offset = row.offset or 0
    if not row.numel:
        return offset, offset
    return offset, offset + 1 + sum((n - 1) * s for n, s in zip(row.shape or (), row.stride or (), strict=False))


def view(cells: Mask, row: Row) -> Mask:
    """The cells that a tensor shows, in its shape."""
    assert row.shape is not None
    assert row.stride is not None
    return as_strided(cells[row.offset or 0 :], row.shape, [s * cells.itemsize for s in row.stride])


def covers(a: Row, b: Row) -> bool:
    """Whether the region of a contains that of b: exact if they are equal or a is dense."""
    if (a.offset, a.shape, a.stride) == (b.offset, b.shape, b.stride):
        return True
    (a0, a1), (b0, b1) = span(a), span(b)
    return (a.numel or 0) >= a1 - a0 and a0 <= b0 and b1 <= a1


@dataclass
class _Storage:
    cells: dict[int, Mask] = field(default_factory=dict)  # per finding
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
        end = span(row)[1]
        for root, cells in known.cells.items():
            if len(cells) < end:
                cells = known.cells[root] = np.concatenate((cells, np.zeros(end - len(cells), bool)))
            mask = view(cells, row) & nonfinite
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
        if end > MOST_SPAN:
            if row.numel == end:
                known.whole.clear()
            known.whole.update(labels)
            return
        for root in {*known.cells, *labels}:
            cells = known.cells.get(root)
            if cells is None or len(cells) < end:
                grown = np.zeros(end, bool)
                if cells is not None:
                    grown[: len(cells)] = cells
                cells = known.cells[root] = grown
            view(cells, row)[...] = labels.get(root, False)
            if root not in labels and not cells.any():
                del known.cells[root]

    def add(self, row: Row, root: int, mask: Mask) -> None:
        """These elements of a tensor descend from one more finding."""
        if not row.placed or row.storage is None or not row.numel:
            return
        known = self.storages.setdefault(row.storage, _Storage())
        end = span(row)[1]
        if end > MOST_SPAN:
            known.whole.add(root)
            return
        cells = known.cells.get(root)
        if cells is None or len(cells) < end:
            grown = np.zeros(end, bool)
            if cells is not None:
                grown[: len(cells)] = cells
            cells = known.cells[root] = grown
        view(cells, row)[...] |= mask

    def forget(self, storage: int) -> None:
        """Nobody will look at this storage again."""
        self.storages.pop(storage, None)
