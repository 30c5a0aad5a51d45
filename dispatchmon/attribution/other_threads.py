"""
Module calls in threads whose operators are not recorded, but whose backward pass may be.

Autograd numbers are per thread and a node does not say whose it is, so the nodes made there are labelled with their context.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from dispatchmon.torch_internals import NOT_NUMBERED

FOREIGN_KEY = "dispatchmon"  # in the metadata of a node that another thread made: its context


class OtherThreads:
    """Follows the module calls of every thread but the one that records."""

    def __init__(self, context_of: Callable[[nn.Module], int | None]) -> None:
        self.context_of = context_of  # a new context for a call of this module; None if it has no name
        self.local = threading.local()
        self.calls = 0

    @property
    def path(self) -> list[int]:
        """Contexts of the modules that run in this thread."""
        try:
            path: list[int] = self.local.path
        except AttributeError:
            path = self.local.path = []
        return path

    def enter(self, module: nn.Module) -> None:
        """A module is called."""
        self.calls += 1
        context, path = self.context_of(module), self.path
        path.append(context if context is not None else path[-1] if path else 0)

    def leave(self, output: Any) -> None:
        """The call is over: label the nodes that it made."""
        context = self.path.pop()
        pending = [t.grad_fn for t in tree_leaves(output) if isinstance(t, torch.Tensor)]
        while pending:
            node: Any = pending.pop()
            if node is not None and FOREIGN_KEY not in node.metadata and node._sequence_nr() != NOT_NUMBERED:
                node.metadata[FOREIGN_KEY] = context
                pending += [following for following, _ in node.next_functions]
