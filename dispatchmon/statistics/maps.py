"""Where in a value its non-finite elements lie, as a small map: column `cells` of the trace (memory/cells.py)."""

from __future__ import annotations

from math import inf, prod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dispatchmon.memory.cells import packed, shrunk, stretches
from dispatchmon.statistics.layout import COMPLEX


def map_of(values: torch.Tensor, nan: bool = True, posinf: bool = True, neginf: bool = True) -> bytes:
    """
    Which cells of a value hold NaN, +Inf and -Inf; of a complex one by its magnitude, so never -Inf.

    The flags say which of them it holds at all.
    """
    lengths = stretches(values.shape)
    if values.dtype in COMPLEX:
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
