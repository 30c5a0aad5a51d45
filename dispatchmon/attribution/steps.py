"""Which training step it is, and whether an optimizer runs (`docs/attribution.md` has the rules)."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch.compiler import is_compiling
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from dispatchmon.packed.records import FORWARD, OPTIMIZER
from dispatchmon.torch_internals import an_optimizer_was_made, is_of_optimizers, never_compile, runs_below


class Steps:
    """
    Counts the steps of one thread.

    Args:
        enter: called when operators belong to another phase from here on: to an optimizer, or to forward again.
    """

    def __init__(self, enter: Callable[[int], None]) -> None:
        self.enter = enter
        self.number = 0
        self.micro = -1  # outermost calls of the model in this step, less one
        self.manual = False  # monitor.step() was called
        self.calls_end_steps = False  # the outermost call that returned last ended a step, unless an optimizer turns up
        self.idle = False  # this step is not recorded
        self.optimizing = 0  # optimizers whose step is running, one inside the other
        self.has_closure = False
        self.code: Any = None  # of the step that runs
        self.codes: dict[int, Any] = {}  # torch's code that runs only while an optimizer steps, by id
        self.line = 0  # the line that called an optimizer whose step is torch's code only; 0: look each time
        self.first_optimizer: weakref.ref[Optimizer] | None = None
        self.thread = threading.get_ident()
        self.handles: list[Any] = []
        self.over: Callable[[int], None] = lambda step: None  # called with the number of the step that begins
        self.optimizer_runs: Callable[[Optimizer, bool], None] = lambda optimizer, after: None
        self.line_of: Callable[[Optimizer, FrameType], int] = lambda optimizer, frame: 0

    def open(self) -> None:
        """Start to follow optimizers."""
        self.thread = threading.get_ident()
        self.handles = [
            register_optimizer_step_pre_hook(self.optimizer_pre_hook),
            register_optimizer_step_post_hook(self.optimizer_post_hook),
        ]

    def close(self) -> None:
        """Take the hooks off."""
        for handle in self.handles:
            handle.remove()
        self.handles.clear()

    @property
    def phase(self) -> int:
        """The phase of what runs outside every module."""
        return OPTIMIZER if self.optimizing else FORWARD

    @property
    def need_calls(self) -> bool:
        """Whether steps may end with calls of the model, as far as is known."""
        return not (self.manual or self.first_optimizer is not None)

    def end(self) -> None:
        """What follows belongs to the next step."""
        self.number += 1
        self.micro = -1
        self.calls_end_steps = False
        self.enter(FORWARD)
        self.over(self.number)

    def model_called(self) -> None:
        """The model is called from outside: a new micro step, or a new step in a loop without an optimizer."""
        if self.optimizing and not runs_below(sys._getframe(), self.code):
            self.left_optimizer_by_exception()
        if self.calls_end_steps and not self.manual and self.first_optimizer is None:
            self.end()
        # Decided when the next call comes: what follows a call (loss, backward, a hand-written update) belongs to its step.
        self.calls_end_steps = not (torch.is_grad_enabled() and an_optimizer_was_made())
        self.micro += 1

    # ------------------------------------------------------------------------------------------------- optimizers
    def optimizer_pre_hook(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """An optimizer is about to step."""
        if is_compiling() or threading.get_ident() != self.thread:
            return
        self.optimizing += 1
        if self.optimizing > 1:  # an optimizer that wraps another
            return
        if self.first_optimizer is None:
            self.first_optimizer = weakref.ref(optimizer)
        self.code = sys._getframe(1).f_code
        self.has_closure = any(a is not None for a in args[1:]) or kwargs.get("closure") is not None
        skip = self.idle or self.has_closure
        self.line = 0 if skip else self.line_of(optimizer, sys._getframe(1))
        self.optimizer_runs(optimizer, False)
        self.enter(OPTIMIZER)

    def optimizer_post_hook(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """An optimizer has stepped."""
        if is_compiling() or threading.get_ident() != self.thread or not self.optimizing:
            return
        self.optimizing -= 1
        if self.optimizing:
            return
        self.has_closure, self.line = False, 0
        self.optimizer_runs(optimizer, True)
        first = self.first_optimizer() if self.first_optimizer is not None else None
        if not self.manual and (first is None or first is optimizer):
            self.first_optimizer = weakref.ref(optimizer)  # the first is gone: this one takes its place
            self.end()
        else:
            self.enter(FORWARD)

    def still_optimizing(self, frame: FrameType) -> bool:
        """Whether the optimizer that began to step leads to this frame; torch calls no hook when `step` raises."""
        if not runs_below(frame, self.code):
            self.left_optimizer_by_exception()
            return False
        if is_of_optimizers(frame.f_code):
            self.codes[id(frame.f_code)] = frame.f_code
        return True

    def left_optimizer_by_exception(self) -> None:
        """The step is not over, but the optimizer is."""
        self.optimizing, self.has_closure, self.line = 0, False, 0
        self.enter(FORWARD)


never_compile(Steps.optimizer_pre_hook)
never_compile(Steps.optimizer_post_hook)
