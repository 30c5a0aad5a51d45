"""The tensors among the arguments of one call of an operator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor


def operand(args: tuple[Any, ...], kwargs: dict[str, Any] | None, position: int, name: str) -> Any:
    """An argument of a call, by position or by name."""
    return args[position] if position < len(args) else kwargs.get(name) if kwargs else None


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among values and in lists of them."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)
