"""Shapes, strides and offsets to numbers."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any

import torch
from torch import Tensor

from dispatchmon.memory.cells import runs_of
from dispatchmon.memory.regions import Region, region
from dispatchmon.packed.tables import Table
from dispatchmon.statistics.layout import Layout, layout_of


def plain_sizes(sizes: Iterable[Any]) -> tuple[int, ...]:
    """
    Sizes as they are.

    Raises:
        TypeError: one is symbolic. Asking it for its number would specialize what is being traced.
    """
    found = tuple(sizes)
    if any(type(n) is not int for n in found):
        raise TypeError("a symbolic size")
    return found


class Geometries(dict[Any, tuple[int, int, Layout | None, Any]]):
    """
    (shape, stride, offset, dtype) -> (geometry number, memory number, layout, the key).

    Two geometries that cover the same elements have one memory number: `t()` and `view` need no second measurement.
    """

    def __init__(self, table: Table) -> None:
        self.table = table
        self.memories: dict[Any, int] = {}
        self.next_memory = count().__next__

    def __missing__(self, key: tuple[torch.Size, tuple[int, ...], int, torch.dtype]) -> Any:
        shape, stride, offset, dtype = key
        number = self.table.add((tuple(shape), tuple(stride), offset, dtype, shape.numel()))
        runs, repeat = runs_of(shape, stride)
        place = runs, repeat, offset, dtype
        memory = self.memories.get(place)
        if memory is None:
            memory = self.memories[place] = self.next_memory()
        layout = None if 0 in shape else layout_of(runs, repeat, offset, dtype)
        entry = self[key] = number, memory if 0 not in shape else -1, layout, key
        return entry

    def forget(self) -> None:
        """Start again; memory numbers, which tags remember, go on."""
        self.clear()
        self.memories.clear()
        self.table.forget()


def region_of(tensor: Tensor) -> Region:
    """The bytes that a tensor covers."""
    return region(tensor.shape, tensor.stride(), int(tensor.storage_offset()), tensor.element_size())


def region_of_entry(entry: Any) -> Region:
    """The same of an entry of `Values.geometries`."""
    shape, stride, offset, dtype = entry[3]
    return region(shape, stride, offset, dtype.itemsize)
