"""
The same numbers as in `reductions.py`, computed on the device where the value lies, and fetched later.

Nothing here asks a tensor for a number before `fetch`, so no operator waits for the device: the rows stay in a table on it
until the step ends or a batch is full, and come in one transfer.
"""

from __future__ import annotations

from math import inf, nan

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dispatchmon.packed.totals import COUNT, INF, NAN, NORM, POSINF, SPREAD, TOTALS, ZERO
from dispatchmon.statistics.reductions import PIECE, pieces

DEVICE_PIECE = 1 << 21  # elements converted to float64 at a time: fewer and larger kernels than on CPU


def row(tensor: Tensor, sizes: tuple[int, ...], strides: tuple[int, ...], offset: int, repeat: int) -> Tensor:
    """
    The row of statistics of the elements that a tensor has at these places, float64 of shape [10], on its device.

    Args:
        tensor: strided, of a real or complex dtype.
        sizes: of the dimensions that tell elements apart.
        strides: of these, in elements.
        offset: of the first element in the storage.
        repeat: how often each element stands in the tensor.

    Raises:
        NotImplementedError: the device has no float64, so the numbers could not be kept.
    """
    if tensor.device.type == "mps":
        raise NotImplementedError(f"float64 statistics on {tensor.device}")
    most = PIECE if tensor.is_cpu else DEVICE_PIECE
    rows = [of_piece(part) for part in pieces(tensor, sizes, strides, offset, most)]
    found = merged(torch.stack(rows)) if len(rows) > 1 else rows[0]
    if repeat != 1:
        factor = [repeat if i in (COUNT, NAN, INF, POSINF, ZERO) else 1.0 for i in range(TOTALS)]
        factor[SPREAD] = factor[NORM] = repeat**0.5
        found = found * torch.tensor(factor, dtype=torch.float64).to(found.device, non_blocking=True)
    return found


def of_piece(part: Tensor) -> Tensor:
    """The row of one piece. Complex elements count by their magnitude."""
    if part.numel() == 0:
        return torch.tensor([0.0, inf, -inf, *[0.0] * 7], dtype=torch.float64, device=part.device)
    if part.is_complex():
        part = part.to(torch.complex128)
        is_nan = part.real.isnan() | part.imag.isnan()
        values = torch.where(is_nan, nan, torch.hypot(part.real, part.imag))
    else:
        values = part.to(torch.float64)
        is_nan = values.isnan()
    is_inf = values.isinf()
    finite = ~(is_nan | is_inf)
    n = finite.sum()
    low, high = torch.where(finite, values, inf).amin(), torch.where(finite, values, -inf).amax()
    peak = torch.maximum(low.abs(), high.abs())
    # Powers of two scale without rounding: neither a sum nor a square leaves float64's range.
    power = torch.frexp(peak)[1].clamp(min=-1000).to(torch.float64)
    far = ((peak > 1e140) | ((peak > 0) & (peak < 1e-140))) & (n > 0)
    scale = torch.where(far, torch.exp2(-power), 1.0)
    scaled = torch.where(finite, values, 0.0) * scale
    mean = scaled.sum() / n.clamp(min=1)
    spread = torch.where(finite, scaled - mean, 0.0).square().sum().sqrt()
    norm = scaled.square().sum().sqrt()
    counts = is_nan.sum(), is_inf.sum(), (values == inf).sum(), (values == 0).sum()
    found = (n, low, high, mean / scale, spread / scale, norm / scale, *counts)
    return torch.stack([number.to(torch.float64) for number in found])


def merged(rows: Tensor) -> Tensor:
    """One row for all pieces; `rows` is of shape [pieces, 10]."""
    n, low, high, mean, spread, norm = rows[:, : NORM + 1].unbind(1)
    total = n.sum()
    both = (n / total.clamp(min=1) * mean).sum()
    apart = n.sqrt() * (mean - both)
    first = torch.stack([total, low.amin(), high.amax(), both, root(torch.cat([spread, apart])), root(norm)])
    return torch.cat([first, rows[:, NAN:].sum(0)])


def root(parts: Tensor) -> Tensor:
    """The root of the sum of squares, none of which leaves the range of float64."""
    most = parts.abs().amax()
    return torch.where(most > 0, most * (parts / most).square().sum().sqrt(), 0.0)


def is_capturing(tensor: Tensor) -> bool:
    """Whether what runs now becomes part of a CUDA graph: it would run again with each replay."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


class Deferred:
    """
    Rows of statistics on a device, each for a slot of the table, until `fetch` brings all of them in one transfer.

    Args:
        device: where they are kept.
        most: how many fit, 80 bytes each.
    """

    def __init__(self, device: torch.device, most: int) -> None:
        self.table = torch.empty(most, TOTALS, dtype=torch.float64, device=device)
        self.slots: list[int] = []

    def put(self, slot: int, numbers: Tensor) -> None:
        """Keep a row."""
        self.table[len(self.slots)].copy_(numbers)
        self.slots.append(slot)

    def look(self) -> tuple[list[int], npt.NDArray[np.float64]] | None:
        """(slots, their rows); this waits for the device. None if another thread fetched them meanwhile."""
        slots = self.slots
        n = len(slots)
        rows = self.table[:n].cpu().numpy().copy()
        return (slots[:n], rows) if self.slots is slots else None

    def fetch(self, block: npt.NDArray[np.float64], first: int) -> tuple[list[int], npt.NDArray[np.float64]]:
        """Move the rows into a table that begins at slot `first`; they are in one or in both at any moment."""
        found = self.look()
        assert found is not None  # nobody else fetches
        block[np.array(found[0], dtype=np.int64) - first] = found[1]
        self.slots = []
        return found
