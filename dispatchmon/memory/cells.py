"""
Where the non-finite elements of a value lie: a small map, in the order of memory, with at most `MOST_CELLS` cells.

A value of up to `MOST_CELLS` elements has one cell per element; of a larger one a cell is a stretch of elements, and says
whether any of them is NaN, +Inf or -Inf. The map is made when a value is measured and found to hold such elements
(`statistics/maps.py`), and read by the analysis, without torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]
MOST_CELLS = 4096
MOST_MAPPED = 1 << 20  # elements of a value that is mapped
NAN, POSINF, NEGINF = range(3)  # the maps that follow the first byte, each if its bit is set there


def runs_of(shape: Sequence[int], stride: Sequence[int]) -> tuple[tuple[tuple[int, int], ...], int]:
    """The dimensions as (stride, size), innermost first, merged where they are dense; and the factor of the expanded ones."""
    runs: list[tuple[int, int]] = []
    repeat = 1
    for step, size in sorted(zip(stride, shape, strict=True)):
        if size == 1:
            continue
        if step == 0:
            repeat *= size
        elif runs and runs[-1][0] * runs[-1][1] == step:
            runs[-1] = runs[-1][0], runs[-1][1] * size
        else:
            runs.append((step, size))
    return tuple(runs or [(1, 1)]), repeat


def stretches(sizes: Sequence[int]) -> list[int]:
    """How many elements of each dimension, outermost first, one cell covers."""
    lengths, room = [], MOST_CELLS
    for size in sizes:
        length = -(-size // min(size, room))
        lengths.append(length)
        room = max(1, room // -(-size // length))
    return lengths


def shrunk(mask: Mask, lengths: Sequence[int]) -> Mask:
    """Cells of a mask over the dimensions of the memory: whether any element of the stretch is set."""
    for axis, length in enumerate(lengths):
        if length > 1:
            mask = np.logical_or.reduceat(mask, np.arange(0, mask.shape[axis], length), axis=axis)
    return mask


def over(mask: Mask, axes: int | tuple[int, ...], keepdims: bool = False) -> Mask:
    """Whether any element along these dimensions is set."""
    return np.asarray(np.any(mask, axis=axes, keepdims=keepdims))


def packed(masks: Sequence[Mask]) -> bytes:
    """The maps of NaN, +Inf and -Inf as the bytes of the trace."""
    present = [mask.any() for mask in masks]
    flags = sum(1 << i for i, any_of in enumerate(present) if any_of)
    bits = [np.packbits(mask.reshape(-1), bitorder="little").tobytes() for mask, on in zip(masks, present) if on]  # noqa: B905
    return bytes([flags]) + b"".join(bits)


def _dimensions(shape: Sequence[int], stride: Sequence[int]) -> list[int]:
    """The dimensions that tell elements apart, outermost in memory first."""
    order = sorted(range(len(shape)), key=lambda d: (stride[d], shape[d]), reverse=True)
    return [d for d in order if shape[d] != 1 and stride[d] != 0]


def sizes_of(shape: Sequence[int], stride: Sequence[int]) -> list[int]:
    """The sizes of the memory's dimensions, merged where they are dense, outermost first."""
    return [size for _, size in reversed(runs_of(shape, stride)[0])]


def elements(cells: Mask, shape: Sequence[int], stride: Sequence[int]) -> Mask:
    """Cells as a mask over the elements of a tensor: all elements of a cell that is set are set."""
    sizes = sizes_of(shape, stride)
    lengths = stretches(sizes)
    mask = cells.reshape([-(-size // length) for size, length in zip(sizes, lengths, strict=True)])
    for axis, length in enumerate(lengths):
        if length > 1:
            mask = np.repeat(mask, length, axis=axis)[(slice(None),) * axis + (slice(sizes[axis]),)]
    dimensions = _dimensions(shape, stride)
    mask = mask.reshape([shape[d] for d in dimensions]).transpose(np.argsort(dimensions))
    kept = [shape[d] if d in dimensions else 1 for d in range(len(shape))]
    return np.broadcast_to(mask.reshape(kept), tuple(shape))


def is_exact(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether every element has a cell of its own."""
    return prod(sizes_of(shape, stride)) <= MOST_CELLS


def cells_of(shape: Sequence[int], stride: Sequence[int]) -> int:
    """How many cells the map of a tensor has."""
    sizes = sizes_of(shape, stride)
    return prod(-(-size // length) for size, length in zip(sizes, stretches(sizes), strict=True))


def unpacked(data: bytes, shape: Sequence[int], stride: Sequence[int]) -> tuple[Mask, Mask, Mask]:
    """The maps of NaN, +Inf and -Inf over the elements of a tensor with this shape and stride."""
    n = cells_of(shape, stride)
    found: list[Mask] = []
    at = 1
    for i in range(3):
        if data[0] >> i & 1:
            bits = np.unpackbits(np.frombuffer(data, np.uint8, -(-n // 8), at), count=n, bitorder="little")
            found.append(elements(bits.astype(bool), shape, stride))
            at += -(-n // 8)
        else:
            found.append(np.broadcast_to(np.False_, tuple(shape)))
    return found[NAN], found[POSINF], found[NEGINF]


def as_cells(mask: Mask, stride: Sequence[int]) -> Mask:
    """An element-by-element mask in the resolution of the map of a tensor with this stride: one flag per cell."""
    shape = mask.shape
    dimensions = _dimensions(shape, stride)
    repeated = tuple(d for d in range(len(shape)) if d not in dimensions)
    mask = over(mask, repeated) if repeated else mask
    left = sorted(dimensions)
    mask = mask.transpose([left.index(d) for d in dimensions]) if dimensions else mask.reshape(1)
    sizes = sizes_of(shape, stride)
    return shrunk(np.ascontiguousarray(mask).reshape(sizes), stretches(sizes)).reshape(-1)
