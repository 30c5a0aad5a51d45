"""The arguments of one operator that are no tensors, as JSON."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from marshal import dumps, loads
from operator import itemgetter
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from dispatchmon.packed.tables import Table


class Arguments:
    """The non-tensor arguments of one operator as JSON, interned: the same values give the same number."""

    __slots__ = ("by_name", "known", "names", "pick", "positions", "table")

    def __init__(self, table: Table, positions: Sequence[int], names: Sequence[str], by_name: frozenset[str]) -> None:
        self.table, self.by_name = table, by_name
        self.positions = positions  # of arguments that are no tensors
        self.names = names  # of all positional arguments
        self.pick: dict[int, Any] = {}  # number of positional arguments -> itemgetter of those that are no tensors
        self.known: dict[bytes | str, int] = {}

    def number(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None, scalars: tuple[Any, ...]) -> int:
        """
        The number of these values.

        Args:
            args: positional arguments; the tensors among them are passed over.
            kwargs: the others.
            scalars: (argument number, value, ...) where a number stands in the place of a tensor, as in `x + 1`.
        """
        length = len(args)
        try:
            pick = self.pick[length]
        except KeyError:
            found = [p for p in self.positions if p < length]
            pick = self.pick[length] = itemgetter(*found) if found else None
        values = None if pick is None else pick(args)
        if not kwargs and not scalars and pick is None:
            return 0
        try:
            # A key that tells 1, 1.0 and True apart; version 2 has no references, so equal values give equal bytes.
            key: bytes | str = dumps((values, scalars, kwargs), 2)
        except ValueError:  # a dtype, a device, a generator; a tensor, whose `repr` would read all of its elements
            key = repr(plain((values, scalars, [(k, v) for k, v in (kwargs or {}).items() if k in self.by_name])))
        number = self.known.get(key)
        if number is None:
            number = self.known[key] = self.add(args, kwargs)
        return number

    def values(self, number: int) -> list[Any]:
        """The plain values that a number stands for; `inf` and `nan` also where others stand among them."""
        key = next((key for key, known in self.known.items() if known == number), None)
        if key is None:
            return []
        if isinstance(key, bytes):
            return tree_leaves(loads(key))
        return [float(word) for word in re.findall(r"'(-?inf|nan)'", key)]

    def add(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> int:
        """A new number."""
        given = {
            name: value
            for i, (name, value) in enumerate(zip(self.names, args))  # noqa: B905 - defaults are left out of args
            if i in self.positions or isinstance(value, (bool, int, float, complex, torch.SymInt, torch.SymFloat))
        }
        given.update((k, v) for k, v in (kwargs or {}).items() if k in self.by_name)
        return self.table.add(json.dumps({name: plain(value) for name, value in given.items()}, ensure_ascii=False))


def plain(value: Any) -> Any:
    """A non-tensor argument as JSON can hold it; names without `torch.`; infinities and NaN as strings."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format, complex)):
        return str(value).removeprefix("torch.")
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return str(value)
    return type(value).__name__
