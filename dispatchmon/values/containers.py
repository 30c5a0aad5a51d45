"""The tensors in what a module is given and gives back: in lists, dicts, dataclasses, other objects."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

DEEPEST = 6  # of containers inside containers
ATOMS = frozenset({int, float, bool, str, bytes, type(None), torch.dtype, torch.device, torch.Size})


def members(value: Any, objects: bool = False) -> Iterator[tuple[str, Any]]:
    """(place, member) of a container, as `[0]`, `.logits`; of any other object nothing, or if wanted its attributes."""
    if isinstance(value, (dict, UserDict)):  # transformers' ModelOutput and BatchEncoding, too
        return ((f".{key}" if isinstance(key, str) else f"[{key!r}]", member) for key, member in value.items())
    if isinstance(value, (list, tuple)):
        fields = getattr(value, "_fields", None)
        if fields:
            return ((f".{name}", member) for name, member in zip(fields, value))  # noqa: B905
        return ((f"[{i}]", member) for i, member in enumerate(value))
    declared = getattr(type(value), "__dataclass_fields__", None)
    if declared is not None:
        return ((f".{name}", getattr(value, name, None)) for name in declared)
    if not objects or isinstance(value, (nn.Module, type)):
        return iter(())
    return ((f".{name}", member) for name, member in list(getattr(value, "__dict__", {}).items()))


def tensors_within(value: Any, place: str, objects: bool, depth: int = DEEPEST) -> Iterator[tuple[str, Tensor]]:
    """(place, tensor) of each tensor in a value."""
    if isinstance(value, Tensor):
        yield place, value
    elif depth and type(value) not in ATOMS:
        for name, inner in members(value, objects):
            yield from tensors_within(inner, place + name, objects, depth - 1)
