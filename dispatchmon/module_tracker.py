"""
Where an operator belongs: module, module call, step, micro step, phase.

`ModuleTracker` is told of each module call (`attribution/module_calls.py`) and keeps the stack of those that are open. What
it knows of steps and optimizers is in `attribution/steps.py`, of names in `attribution/module_names.py`; what comes out is
the number of a context (`attribution/contexts.py`).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import nn

from dispatchmon.attribution.compiled import CompiledCode, is_compiled
from dispatchmon.attribution.contexts import Contexts
from dispatchmon.attribution.module_calls import TRACKERS, wrap_while_needed
from dispatchmon.attribution.module_names import ModuleNames
from dispatchmon.attribution.other_threads import OtherThreads
from dispatchmon.attribution.steps import Steps
from dispatchmon.packed.records import FORWARD
from dispatchmon.packed.tables import Tables
from dispatchmon.torch_internals import graph_task


class CallObserver(Protocol):
    """Who records what goes in and out of the model's modules: observing/module_values.py."""

    unowned: int

    def before(self, kind: type, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None: ...
    def after(self, output: Any) -> None: ...


class CallJudge(Protocol):
    """Who follows what each call is given and hands out: hazards/overwrites.py."""

    def enter(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> None: ...
    def skip(self) -> None: ...
    def leave(self, depth: int, result: Any) -> None: ...


class ModuleTracker:
    """Follows one thread's module calls and optimizers, and writes contexts and positions into the tables."""

    def __init__(self, model: nn.Module | None, tables: Tables, modules: Sequence[str] = ("*",)) -> None:
        self.names = ModuleNames(model, tables.modules, modules)
        self.contexts = Contexts(tables, self.names.filtered)
        self.steps = Steps(self.enter_phase)
        self.threads = OtherThreads(self.context_in_other_thread)
        self.compiled = CompiledCode()
        self.thread = threading.get_ident()
        self.stack: list[tuple[int, bool, str | None]] = []  # of the callers: context, measured, path
        self.path: str | None = None  # name of the module that runs
        self.caller = 0  # the line outside every package that called the model
        self.failed = 0, 0  # id of the last exception that left a call, context of the innermost such call
        self.paused = False  # this step is not recorded: calls are counted, modules are not noted
        self.watches_training = False  # module calls decide whether anything is recorded
        self.caller_of: Callable[[Any], int] = lambda frame: 0
        self.training_is: Callable[[bool], None] = lambda training: None  # called at each outermost call
        self.observer: CallObserver | None = None
        self.judge: CallJudge | None = None

    # ------------------------------------------------------------------------------------------------- open, close
    def open(self) -> None:
        """Start to follow module calls and optimizers."""
        self.thread = threading.get_ident()
        self.names.learn()
        self.enter_phase(FORWARD)
        self.steps.open()
        TRACKERS.append(self)
        wrap_while_needed()
        self.compiled.open()

    def close(self) -> None:
        """Stop; every hook and wrapper is taken off."""
        if self in TRACKERS:
            TRACKERS.remove(self)
        wrap_while_needed()
        self.compiled.close()
        self.steps.close()

    def pause(self) -> None:
        """What follows is not recorded."""
        self.paused = self.steps.idle = self.compiled.idle = True
        wrap_while_needed()

    def resume(self) -> None:
        """What follows is recorded."""
        self.paused = self.steps.idle = self.compiled.idle = False
        wrap_while_needed()
        self.enter_phase(self.steps.phase)

    def needs_calls(self) -> bool:
        """Whether module calls must be seen: not in a step that is not recorded and that ends without them."""
        return not self.paused or self.watches_training or self.steps.need_calls

    # ------------------------------------------------------------------------------------------------- contexts
    @property
    def module(self) -> int:
        """Number of the module that runs; 0 outside."""
        return 0 if self.path is None else self.names.numbers[self.path]

    def add_context(self, module: int, call: int, phase: int, training: bool | None) -> int:
        """A new context in this step, by number."""
        caller, mode = (0, -1) if training is None else (self.caller, int(training))
        steps = self.steps
        return self.contexts.add(module, call, steps.number, max(steps.micro, 0), phase, caller, mode)

    def enter_phase(self, phase: int) -> None:
        """From here on operators are outside every module. Nothing is noted of a step that is not recorded."""
        if not self.paused:
            self.contexts.go_to(self.add_context(0, -1, phase, None), not self.names.filtered)

    def context_in_optimizer(self, frame: Any) -> int:
        """The context of an operator while an optimizer steps: its own, or forward when its closure runs the model."""
        contexts, steps = self.contexts, self.steps
        if id(frame.f_code) not in steps.codes and not steps.still_optimizing(frame):
            return contexts.current
        if steps.has_closure and not self.stack and torch.is_grad_enabled():
            context, measured = contexts.current, contexts.measured
            if not self.paused:
                contexts.go_to(self.add_context(0, -1, FORWARD, None), measured)
            closure, contexts.current, contexts.measured = contexts.current, context, measured
            return closure
        return contexts.current

    def context_in_other_thread(self, module: nn.Module) -> int | None:
        """A context for a module call there."""
        known = self.names.of(module)
        return None if known is None else self.add_context(known.numbers[0], -1, FORWARD, module.training)

    # ------------------------------------------------------------------------------------------------- module calls
    def forward_pre_hook(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A module is called."""
        again = graph_task() != -1  # a checkpoint's region runs again
        known = self.names.known.get(id(module))
        if known is None or known.module() is not module:
            known = self.names.met(module, self.steps.number, outermost=not self.stack and not again)
        if not self.stack and not again and known is not None:
            self.outermost_call(module)
        if self.compiled.depth is None and is_compiled(module):
            self.compiled.depth = len(self.stack)
        contexts = self.contexts
        self.stack.append((contexts.current, contexts.measured, self.path))
        if self.judge is not None:
            if self.paused or again:
                self.judge.skip()
            else:
                self.judge.enter(args, kwargs)
        if self.paused or known is None:
            if self.observer is not None and not self.paused and self.path is not None:
                self.observer.unowned += 1
            return
        i = known.name_below(self.path) if len(known.names) > 1 else 0
        call = known.next_call(self.steps.number, again)
        self.path = known.names[i]
        context = self.add_context(known.numbers[i], call, FORWARD, module.training)
        contexts.go_to(context, contexts.measured or known.measured[i])
        if self.observer is not None:
            self.observer.before(type(known.module()), self.path, args, kwargs)

    def outermost_call(self, module: nn.Module) -> None:
        """The model is called from outside."""
        self.steps.model_called()
        self.caller = self.caller_of(sys._getframe(3))
        self.training_is(module.training)
        self.enter_phase(self.steps.phase)

    def forward_hook(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """The call is over; `output` is None if it raised."""
        if self.observer is not None:
            self.observer.after(output)
        if output is None and (error := sys.exc_info()[1]) is not None and self.failed[0] != id(error):
            self.failed = id(error), self.contexts.current
        if self.stack:
            if self.judge is not None:
                self.judge.leave(len(self.stack) - 1, output)
            self.return_to(len(self.stack) - 1)
        if is_compiled(module):
            self.compiled.module_left()

    def return_to(self, depth: int) -> None:
        """Leave the call that was entered at this depth, and whatever was left open inside it."""
        if len(self.stack) > depth:
            context, measured, self.path = self.stack[depth]
            del self.stack[depth:]
            if self.compiled.depth is not None and depth <= self.compiled.depth:
                self.compiled.depth = None
            self.contexts.go_to(context, measured)
