"""Which elements of a memory a value has, as the kernel takes it."""

from __future__ import annotations

import struct
from typing import NamedTuple

import torch

from dispatchmon.statistics.kernel import native

MOST_DIMENSIONS = 8  # outer dimensions the kernel takes
REAL = {
    dtype
    for name in ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz",
                 "float8_e5m2fnuz", "float8_e8m0fnu", "int64", "int32", "int16", "int8", "uint8", "uint16", "uint32",
                 "uint64", "bool")
    if (dtype := getattr(torch, name, None)) is not None
}  # fmt: skip
COMPLEX = {torch.complex32, torch.complex64, torch.complex128}
MEASURABLE = REAL | COMPLEX


class Layout(NamedTuple):
    """Which elements of the memory behind a pointer a value has: its dimensions, merged where they are dense."""

    packed: bytes | None  # the same for the kernel; None if it cannot take it
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    repeat: int  # how often each element stands in the tensor (expanded dimensions)
    start: int  # bytes in the storage before its first element
    end: int  # and up to the end of its last one


def layout_of(runs: tuple[tuple[int, int], ...], repeat: int, offset: int, dtype: torch.dtype) -> Layout | None:
    """How to measure it, or None if there are no statistics for this dtype."""
    if dtype not in MEASURABLE:
        return None
    packed = None
    code = native.DTYPES.get(str(dtype).removeprefix("torch.")) if native is not None else None
    if code is not None and len(runs) <= MOST_DIMENSIONS + 1:
        inner = runs[0] if runs[0][0] == 1 else max(runs, key=lambda run: run[1])
        outer = [run for run in runs if run is not inner]
        pad = [0] * (MOST_DIMENSIONS - len(outer))
        packed = struct.pack(
            native.LAYOUT_FORMAT, code, inner[1], inner[0], len(outer), repeat,
            *(size for _, size in outer), *pad, *(step for step, _ in outer), *pad)  # fmt: skip
    last = offset + sum((size - 1) * step for step, size in runs)
    return Layout(
        packed, tuple(n for _, n in reversed(runs)), tuple(s for s, _ in reversed(runs)), repeat,
        offset * dtype.itemsize, (last + 1) * dtype.itemsize)  # fmt: skip
