"""
Which bytes of its memory a tensor covers, and whether two tensors share some.

Plain numbers in, plain answers out: the same questions are asked while recording and of a trace.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import product
from math import prod
from typing import NamedTuple

MOST_PIECES = 100_000
_SIZES = {"bool": 1, "uint8": 1, "int8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "complex64": 8}


class Region(NamedTuple):
    """The bytes of a tensor within its storage."""

    start: int  # first byte
    stop: int  # behind the last byte
    itemsize: int
    dimensions: tuple[tuple[int, int], ...]  # (size, step in bytes) of each


def region(shape: Sequence[int], stride: Sequence[int], offset: int, itemsize: int) -> Region:
    """The region of a tensor with this shape, and with stride and offset in elements."""
    start, steps = offset * itemsize, [step * itemsize for step in stride]
    last = sum((n - 1) * step for n, step in zip(shape, steps, strict=True))
    return Region(
        start, start if 0 in shape else start + itemsize + last, itemsize, tuple(zip(shape, steps, strict=True))
    )


def overlap(one: Region, other: Region) -> bool:
    """Whether they share a byte. Exact, except for regions of very many pieces: those are taken to fill their bounds."""
    if one.start >= other.stop or other.start >= one.stop:
        return False
    first, second = pieces(one), pieces(other)
    if not first or not second:
        return True
    return any((i := bisect_left(second, (stop,))) > 0 and second[i - 1][1] > start for start, stop in first)


def pieces(of: Region) -> list[tuple[int, int]] | None:
    """The region as sorted (start, stop) of equal length, or None if there are too many."""
    length = of.itemsize
    outer: list[range] = []
    for n, step in sorted(of.dimensions, key=lambda dimension: dimension[1]):
        if n > 1 and 0 < step <= length and not outer:
            length += step * (n - 1)
        elif n > 1 and step:
            outer.append(range(0, n * step, step))
    if prod(map(len, outer)) > MOST_PIECES:
        return None
    starts = sorted(of.start + sum(steps) for steps in product(*outer))
    return [(start, start + length) for start in starts]


def repeats(of: Region) -> bool:
    """Whether two elements of the tensor are one cell of memory."""
    reach, sizes = 0, [n for n, _ in of.dimensions]
    if 0 in sizes:
        return False
    for step, n in sorted((step, n) for n, step in of.dimensions if n > 1):
        if step <= reach:
            return step == 0 or (prod(sizes) <= MOST_PIECES and len(cells(of)) < prod(sizes))
        reach += step * (n - 1)
    return False


def cells(of: Region) -> set[int]:
    """Where the elements begin."""
    found = {0}
    for n, step in of.dimensions:
        found = {cell + i * step for cell in found for i in range(n)}
    return found


def itemsize(dtype: str | None) -> int:
    """Bytes of an element; any constant would do within one event that mixes no types."""
    name = dtype or ""
    if name.startswith("float8"):
        return 1
    return _SIZES.get(name) or {"16": 2, "32": 4, "64": 8, "28": 16}.get(name[-2:], 4)
