"""
The numbers of a value, and how they are computed.

Each measured value fills one row of a table of float64: count, min, max, mean, centred sum of squares, L2 norm of the
finite elements, and how many are NaN, infinite, +Inf, zero. On CPU one pass of the optional C kernel does it; elsewhere,
and without the kernel, torch does, in pieces of bounded size. Pieces are merged as in Chan, Golub and LeVeque,
"Updating formulae and a pairwise algorithm for computing sample variances" (1979).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from math import frexp, hypot, inf, isfinite, prod, sqrt
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from dispatchmon.cells import MOST_MAPPED, packed, runs_of, shrunk, stretches
from dispatchmon.records import TABLE_FULL, UNSUPPORTED
from dispatchmon.torch_internals import address_of, kernels_only

native: Any
try:
    from dispatchmon import _statistics as native
except ImportError:  # no compiler when the package was built
    native = None

COUNT, MIN, MAX, MEAN, M2, NORM, NAN, INF, POSINF, ZERO = range(10)
TOTALS = 10
PIECE = 1 << 17  # elements converted to float64 at a time
MOST_DIMENSIONS = 8  # outer dimensions the kernel takes

_REAL = {
    dtype
    for name in ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz",
                 "float8_e5m2fnuz", "float8_e8m0fnu", "int64", "int32", "int16", "int8", "uint8", "uint16", "uint32",
                 "uint64", "bool")
    if (dtype := getattr(torch, name, None)) is not None
}  # fmt: skip
_COMPLEX = {torch.complex32, torch.complex64, torch.complex128}
MEASURABLE = _REAL | _COMPLEX


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


class Statistics:
    """
    Tables of measured values, one per batch of rows; those of this batch and the one before can still be referred to.

    `measure` returns the slot of a value, a number that goes on from table to table.
    """

    def __init__(self, slots: int, backend: str | None = None) -> None:
        self.slots = slots
        self.backend = (
            backend or os.environ.get("DISPATCHMON_STATISTICS") or ("native" if native is not None else "torch")
        )
        self.kernel = native.measure if self.backend == "native" else None
        self.threads = torch.get_num_threads()
        self.blocks: list[tuple[int, npt.NDArray[np.float64]]] = []
        self.next = self.end = 0
        self.address = 0  # where row `slot` would be in a table that began at slot 0
        self.floor = 0  # the oldest slot whose row is still there
        self.nonfinite = 0  # NaN and infinite elements met so far
        self.cells: dict[int, bytes] = {}  # where they lie, by slot
        self.new_block()

    def new_block(self) -> None:
        block = np.empty((self.slots, TOTALS))
        self.next = self.end
        self.blocks = [*self.blocks[-1:], (self.next, block)]
        self.address = block.ctypes.data - self.next * TOTALS * 8
        self.end = self.next + self.slots
        self.floor = self.blocks[0][0]
        self.cells = {slot: cells for slot, cells in self.cells.items() if slot >= self.floor}

    def norm_at(self, slot: int) -> float:
        """The norm that was measured into a slot that is still there."""
        first, block = next(pair for pair in reversed(self.blocks) if slot >= pair[0])
        return float(block[slot - first][NORM])

    def measure(self, tensor: torch.Tensor, layout: Layout) -> int:
        """Slot of a strided tensor's statistics, or a reason below 0."""
        slot = self.next
        if slot == self.end:
            return TABLE_FULL
        memory = 0 if tensor.is_meta else address_of(tensor)
        if not memory or tensor.untyped_storage().nbytes() < layout.end:  # fake, or a storage that was given back
            return UNSUPPORTED
        if self.kernel is not None and layout.packed is not None and tensor.is_cpu:
            if found := self.kernel(
                self.address + slot * (TOTALS * 8), memory + layout.start, layout.packed, self.threads
            ):
                self.met_nonfinite(found, slot, tensor, layout)
        else:
            with kernels_only():
                found = self.keep(
                    slot,
                    merged(pieces(tensor, layout.sizes, layout.strides, int(tensor.storage_offset()))),
                    layout.repeat,
                )
            if found:
                self.met_nonfinite(found, slot, tensor, layout)
        self.next = slot + 1
        return slot

    def measure_values(self, tensor: torch.Tensor) -> int:
        """The same for a tensor whose stored values are another tensor (sparse), or whose elements must be resolved (neg)."""
        slot = self.next
        if slot == self.end:
            return TABLE_FULL
        with kernels_only():
            stored = stored_values(tensor)
            if stored is None or stored.dtype not in MEASURABLE or stored.is_meta or not readable(stored):
                return UNSUPPORTED
            if stored.is_neg():
                stored = stored.resolve_neg()
            runs, repeat = runs_of(stored.shape, stored.stride())
            sizes, strides = tuple(n for _, n in reversed(runs)), tuple(s for s, _ in reversed(runs))
            if 0 in stored.shape:
                sizes = (0,)
            self.nonfinite += self.keep(
                slot, merged(pieces(stored, sizes, strides, int(stored.storage_offset()))), repeat
            )
        self.next = slot + 1
        return slot

    def met_nonfinite(self, found: int, slot: int, tensor: torch.Tensor, layout: Layout) -> None:
        """Count the elements, and note where they lie. Only values that hold some pay for this."""
        self.nonfinite += found
        if prod(layout.sizes) <= MOST_MAPPED:
            with suppress(Exception), kernels_only():
                first, block = self.blocks[-1]
                _, _, _, _, _, _, nan, infinite, posinf, _ = block[slot - first].tolist()
                values = tensor.as_strided(layout.sizes, layout.strides, tensor.storage_offset())
                self.cells[slot] = map_of(values, nan > 0, posinf > 0, infinite > posinf)

    def keep(self, slot: int, totals: list[float], repeat: int) -> int:
        """Write a row of the table; how many NaN and infinite elements it counts."""
        if repeat != 1:
            for i in (COUNT, M2, NAN, INF, POSINF, ZERO):
                totals[i] *= repeat
            totals[NORM] *= sqrt(repeat)
        first, block = self.blocks[-1]
        block[slot - first] = totals
        return int(totals[NAN] + totals[INF])


def map_of(values: torch.Tensor, nan: bool = True, posinf: bool = True, neginf: bool = True) -> bytes:
    """
    Which cells of a value hold NaN, +Inf and -Inf; of a complex one by its magnitude, so never -Inf.

    The flags say which of them it holds at all.
    """
    lengths = stretches(values.shape)
    if values.dtype in _COMPLEX:
        is_nan = values.isnan()
        masks = [is_nan, values.isinf() & ~is_nan, torch.zeros_like(is_nan)]
        return packed([shrunk(mask.cpu().numpy(), lengths) for mask in masks])
    values = values if values.dtype in (torch.float32, torch.float64) else values.to(torch.float32)
    if len(lengths) == 1 and lengths[0] > 1 and not (nan and (posinf or neginf)):
        return packed(extremes(values, lengths[0], nan, posinf, neginf))
    tests = (nan and values.isnan(), posinf and values == inf, neginf and values == -inf)
    cells = prod(-(-size // length) for size, length in zip(values.shape, lengths, strict=True))
    return packed([np.zeros(cells, bool) if test is False else shrunk(test.cpu().numpy(), lengths) for test in tests])


def extremes(values: torch.Tensor, length: int, nan: bool, posinf: bool, neginf: bool) -> list[npt.NDArray[np.bool_]]:
    """The same maps by the extremes of each stretch, several times as fast as looking at each element."""
    whole = values.numel() // length * length
    parts = (
        [values[:whole].view(-1, length), values[whole:].view(1, -1)]
        if whole < values.numel()
        else [values.view(-1, length)]
    )
    nothing = np.zeros(-(-values.numel() // length), bool)

    def of(reduced: Any, test: Any) -> npt.NDArray[np.bool_]:
        return np.concatenate([test(reduced(part, 1)).cpu().numpy() for part in parts])

    return [
        of(torch.amax, torch.isnan) if nan else nothing,
        of(torch.amax, lambda top: top == inf) if posinf else nothing,
        of(torch.amin, lambda low: low == -inf) if neginf else nothing,
    ]


def readable(tensor: torch.Tensor) -> bool:
    """Whether a strided tensor has its elements in memory."""
    return tensor.numel() == 0 or address_of(tensor) != 0


def stored_values(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor that holds the elements of a sparse or negated one; None for kinds without ordinary elements."""
    if tensor.is_quantized or tensor.is_mkldnn or tensor.is_nested:
        return None
    if tensor.layout == torch.sparse_coo:
        return tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc):
        return tensor.values()
    return tensor if tensor.layout == torch.strided else None


def pieces(
    tensor: torch.Tensor, sizes: tuple[int, ...], strides: tuple[int, ...], offset: int
) -> Iterator[torch.Tensor]:
    """The elements in pieces of at most PIECE, as views."""
    if prod(sizes) <= PIECE:
        yield tensor.as_strided(sizes, strides, offset)
        return
    largest = max(range(len(sizes)), key=lambda i: sizes[i])
    rest = prod(sizes) // sizes[largest]
    step = max(1, PIECE // rest)
    for start in range(0, sizes[largest], step):
        part = (*sizes[:largest], min(step, sizes[largest] - start), *sizes[largest + 1 :])
        yield from pieces(tensor, part, strides, offset + start * strides[largest])


def merged(parts: Iterator[torch.Tensor]) -> list[float]:
    """One table row for all parts."""
    total = [0.0, inf, -inf, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    for part in parts:
        t = totals(part)
        if n := t[COUNT]:
            both = total[COUNT] + n
            apart = t[MEAN] - total[MEAN]
            total[M2] += t[M2] + apart * apart * (total[COUNT] * n / both)
            total[MEAN] += apart * (n / both)
            total[NORM] = hypot(total[NORM], t[NORM])
            total[MIN], total[MAX] = min(total[MIN], t[MIN]), max(total[MAX], t[MAX])
            total[COUNT] = both
        for i in (NAN, INF, POSINF, ZERO):
            total[i] += t[i]
    return total


def totals(part: torch.Tensor) -> list[float]:
    """One table row of one piece, by torch's reductions in float64."""
    nan = infinite = posinf = 0.0
    if part.dtype in _COMPLEX:
        part = part.to(torch.complex128)
        is_nan = part.real.isnan() | part.imag.isnan()
        values = torch.where(is_nan, torch.nan, torch.hypot(part.real, part.imag))
    else:
        values = part.to(torch.float64)
    n = values.numel()
    if n == 0:
        return [0.0, inf, -inf, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    if values.device.type == "mps":  # no float64 there: cannot promise the numbers
        raise NotImplementedError(f"float64 statistics on {values.device}")
    if not isfinite(float(values.sum())):  # a sum can overflow though no element is infinite
        nan = float(values.isnan().sum())
        posinf = float((values == inf).sum())
        infinite = posinf + float((values == -inf).sum())
        if nan or infinite:
            values = values[values.isfinite()]
            n = values.numel()
            if n == 0:
                return [0.0, inf, -inf, 0.0, 0.0, 0.0, nan, infinite, posinf, 0.0]
    low, high = (float(x) for x in values.aminmax())
    peak = max(abs(low), abs(high))
    zero = n - float(values.count_nonzero())
    # powers of two scale without rounding: neither a sum nor a square leaves float64's range
    scale = min(2.0 ** -frexp(peak)[1], 2.0**1000) if peak > 1e140 or 0 < peak < 1e-140 else 1.0
    if scale != 1.0:
        values = values * scale
    mean = float(values.mean())
    norm = float(values.square().sum()) ** 0.5
    m2 = float((values - mean).square_().sum())
    return [float(n), low, high, mean / scale, m2 / scale / scale, norm / scale, nan, infinite, posinf, zero]
