"""
Memory that is freed and filled again without an operator: `tensor.untyped_storage().resize_(0)`, as FSDP2 does with gathered
parameters between forward and backward. What it holds afterwards is another value, and nobody wrote it behind anyone's back.

While anybody watches, `torch.UntypedStorage.resize_` tells of its calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Watcher = Callable[[torch.UntypedStorage], None]
WATCHERS: list[Watcher] = []
_STORAGE: Any = torch.UntypedStorage
_PLAIN = torch.UntypedStorage.resize_


def _resize_(self: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
    """As torch's own, and whoever watches is told."""
    result = _PLAIN(self, *args, **kwargs)
    for watcher in WATCHERS:
        watcher(self)
    return result


def watch(watcher: Watcher) -> None:
    """Tell of every storage that is resized from here on."""
    WATCHERS.append(watcher)
    _STORAGE.resize_ = _resize_


def unwatch(watcher: Watcher) -> None:
    """Tell no more."""
    if watcher in WATCHERS:
        WATCHERS.remove(watcher)
    if not WATCHERS and _STORAGE.resize_ is _resize_:
        _STORAGE.resize_ = _PLAIN
