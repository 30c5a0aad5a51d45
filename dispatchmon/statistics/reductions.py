"""
The numbers of a value by torch's reductions, read at once: what measures it where the C kernel cannot.

One row of the table of statistics for a piece of bounded size, and the merging of rows as in Chan, Golub and LeVeque,
"Updating formulae and a pairwise algorithm for computing sample variances" (1979).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import frexp, hypot, inf, isfinite, prod, sqrt

import torch

from dispatchmon.packed.totals import COUNT, INF, MAX, MEAN, MIN, NAN, NORM, POSINF, SPREAD, ZERO

PIECE = 1 << 17  # elements converted to float64 at a time


def pieces(
    tensor: torch.Tensor, sizes: tuple[int, ...], strides: tuple[int, ...], offset: int, most: int = PIECE
) -> Iterator[torch.Tensor]:
    """The elements in pieces of at most `most`, as views."""
    if prod(sizes) <= most:
        yield tensor.as_strided(sizes, strides, offset)
        return
    largest = max(range(len(sizes)), key=lambda i: sizes[i])
    rest = prod(sizes) // sizes[largest]
    step = max(1, most // rest)
    for start in range(0, sizes[largest], step):
        part = (*sizes[:largest], min(step, sizes[largest] - start), *sizes[largest + 1 :])
        yield from pieces(tensor, part, strides, offset + start * strides[largest], most)


def merged(parts: Iterator[torch.Tensor]) -> list[float]:
    """One table row for all parts."""
    total = [0.0, inf, -inf, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    for part in parts:
        t = totals(part)
        if n := t[COUNT]:
            both = total[COUNT] + n
            apart = t[MEAN] - total[MEAN]
            total[SPREAD] = hypot(total[SPREAD], t[SPREAD], apart * sqrt(total[COUNT] * n / both))
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
    if part.is_complex():
        part = part.to(torch.complex128)
        is_nan = part.real.isnan() | part.imag.isnan()
        values = torch.where(is_nan, torch.nan, torch.hypot(part.real, part.imag))
    else:
        values = part.to(torch.float64)
    n = values.numel()
    if n == 0:
        return [0.0, inf, -inf, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
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
    spread = float((values - mean).square_().sum()) ** 0.5
    return [float(n), low, high, mean / scale, spread / scale, norm / scale, nan, infinite, posinf, zero]
