"""
What an optimizer adds to a parameter: its value after the step less its value before.

No operator holds that number, so the values before are copied, into buffers that are made once and never exceed `most`
bytes. Parameters that do not fit take turns, step by step; one that is larger than all of it is left out. Both are counted.
The difference is taken in the parameter's precision, of half-precision formats in float32.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dispatchmon.memory.cells import runs_of
from dispatchmon.packed.records import FAILED, UNSUPPORTED
from dispatchmon.statistics.layout import MEASURABLE, Layout, layout_of
from dispatchmon.statistics.table import Statistics
from dispatchmon.torch_internals import kernels_only

Place = tuple[torch.device, torch.dtype]


class Kept(NamedTuple):
    """Where the value of one parameter before the step is."""

    place: Place
    start: int
    numel: int


class Updates:
    """The buffers of one recording."""

    def __init__(self, statistics: Statistics, most: int) -> None:
        self.statistics, self.most = statistics, most
        self.buffers: dict[Place, Tensor] = {}
        self.layouts: dict[tuple[int, int, torch.dtype], Layout | None] = {}
        self.turn = 0  # the parameter that comes first
        self.left_out = 0  # updates that were not measured
        self.kept: dict[int, Kept] = {}

    def keep(self, parameters: list[Tensor]) -> None:
        """Copy as many of the values as there is room for, beginning where the last step ended."""
        self.kept.clear()
        ends: dict[Place, int] = {}
        free, n = self.most, len(parameters)
        chosen: list[int] = []
        for i in range(n):
            at = (self.turn + i) % n
            parameter = parameters[at]
            if parameter.dtype not in MEASURABLE or parameter.layout != torch.strided or not parameter.numel():
                continue
            dtype = precise(parameter.dtype)
            size = parameter.numel() * dtype.itemsize
            if size > self.most:
                self.left_out += 1
                continue
            if size > free:
                self.left_out += sum(1 for j in range(i, n) if parameters[(self.turn + j) % n].numel())
                self.turn = at
                break
            free -= size
            place = parameter.device, dtype
            self.kept[id(parameter)] = Kept(place, ends.get(place, 0), parameter.numel())
            ends[place] = ends.get(place, 0) + parameter.numel()
            chosen.append(at)
        with kernels_only():
            for place, end in ends.items():
                buffer = self.buffers.get(place)
                if buffer is None or buffer.numel() < end:
                    self.buffers[place] = torch.empty(end, device=place[0], dtype=place[1])
            for at in chosen:
                kept = self.kept[id(parameters[at])]
                both(parameters[at], self.buffers[kept.place], kept.start)[1].copy_(flat(parameters[at]))

    def measure(self, parameter: Tensor) -> int | None:
        """Slot of the update's statistics, or why there are none; None if the value before was not kept."""
        kept = self.kept.pop(id(parameter), None)
        if kept is None:
            return None
        if kept.numel != parameter.numel() or kept.place != (parameter.device, precise(parameter.dtype)):
            return UNSUPPORTED  # the parameter has become another one
        buffer = self.buffers[kept.place]
        try:
            with kernels_only():
                now, before = both(parameter, buffer, kept.start)
                torch.sub(now, before, out=before)
            key = kept.numel, kept.start, buffer.dtype
            if key not in self.layouts:
                runs, repeat = runs_of((kept.numel,), (1,))
                self.layouts[key] = layout_of(runs, repeat, kept.start, buffer.dtype)
            layout = self.layouts[key]
            return UNSUPPORTED if layout is None else self.statistics.measure(buffer, layout)
        except Exception:
            return FAILED


def precise(dtype: torch.dtype) -> torch.dtype:
    """The format in which differences are taken."""
    return dtype if dtype.itemsize >= 4 else torch.float32


def is_dense(tensor: Tensor) -> bool:
    """Whether the elements lie in one run, in whatever order."""
    runs, repeat = runs_of(tensor.shape, tensor.stride())
    return repeat == 1 and len(runs) == 1 and runs[0] == (1, runs[0][1])


def flat(tensor: Tensor) -> Tensor:
    """The elements in order of memory where that is one run; else as they are."""
    return tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset()) if is_dense(tensor) else tensor


def both(parameter: Tensor, buffer: Tensor, start: int) -> tuple[Tensor, Tensor]:
    """A parameter and its part of the buffer, of the same shape."""
    now = flat(parameter)
    return now, buffer[start : start + now.numel()].view(now.shape)
