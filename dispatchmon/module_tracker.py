"""
Where an operator belongs: module, module call, step, micro step, phase, and the forward operator of a backward one.

Module calls are seen by wrapping `nn.Module.__call__` while a monitor is open; the wrapper calls `forward_pre_hook` before
and `forward_hook` after, also after an exception. Torch's own global hooks would give the same two calls, but break
`torch.compile(fullgraph=True)`, add graph breaks and lose the end of a call on KeyboardInterrupt; hooks on modules switch
off the fast path of `nn.TransformerEncoderLayer` and travel with pickle (`docs/attribution.md`).

Every autograd node gets a number when it is made, one more than the node before. At each change of place the number that
comes next is noted, so a node that runs in backward leads to the place where it was made.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from bisect import bisect_right
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.compiler import is_compiling
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves

from dispatchmon.packed.records import CONTEXT, FORWARD, OPTIMIZER, POSITION
from dispatchmon.packed.tables import Tables
from dispatchmon.torch_internals import (
    NOT_NUMBERED,
    an_optimizer_was_made,
    dynamo_takes_for_plain,
    frames_compiled,
    graph_task,
    is_of_optimizers,
    jit_tracing_state,
    never_compile,
    next_sequence_number,
    plain_module_call,
    runs_below,
    watch_compiled,
)

if TYPE_CHECKING:
    from dispatchmon.observing.module_values import ModuleValues

pack_context, pack_position = CONTEXT.pack, POSITION.pack
MOST_POSITIONS = 1 << 20  # kept for the module filter
FOREIGN_KEY = "dispatchmon"  # in the metadata of a node that another thread made: its context


class Known:
    """A module that was met: its numbers in the table of modules, by name, and how often it was called in this step."""

    __slots__ = ("again", "calls", "measured", "module", "names", "numbers", "step")

    def __init__(self, module: nn.Module, names: list[str], numbers: list[int], measured: list[bool]) -> None:
        self.module = weakref.ref(module)  # an id is handed out again
        self.names, self.numbers, self.measured = names, numbers, measured
        self.step, self.calls, self.again = -1, 0, 0


class ModuleTracker:
    """Follows one thread's module calls and optimizers, and writes contexts and positions into the tables."""

    def __init__(self, model: nn.Module | None, tables: Tables, modules: Sequence[str] = ("*",)) -> None:
        self.tables = tables
        self.model = weakref.ref(model) if model is not None else None
        self.patterns = tuple(modules)
        self.filtered = "*" not in self.patterns
        self.known: dict[int, Known] = {}
        self.learned = -1  # the step in which names were looked up last
        self.numbers: dict[str, int] = {}
        self.step = 0
        self.micro_step = -1
        self.contexts = 0  # how many were written
        self.context = 0  # of the operator in hand
        self.measured = not self.filtered  # whether statistics are asked for there
        self.stack: list[tuple[int, bool, str | None]] = []  # of the callers: context, measured, path
        self.path: str | None = None
        self.optimizing = 0  # optimizers whose step is running, one inside the other
        self.has_closure = False
        self.optimizer_code: Any = None
        self.codes_of_optimizers: dict[int, Any] = {}  # torch's code that runs only while an optimizer steps, by id
        self.optimizer_line = 0  # the line that called an optimizer whose step is torch's code only; 0: look each time
        self.first_optimizer: weakref.ref[Optimizer] | None = None
        self.manual = False  # monitor.step() was called
        self.calls_end_steps = False  # the outermost call that returned last ended a step, unless an optimizer turns up
        self.step_ends: Callable[[int], None] = lambda step: None
        self.parameters_step: Callable[[Optimizer, bool], None] = lambda optimizer, after: None
        self.positions: tuple[list[int], list[bool]] = ([], [])
        self.thread = threading.get_ident()
        self.local = threading.local()
        self.foreign_calls = 0  # module calls in other threads
        self.compiled_calls = self.steps_left_out = 0
        self.compiled_depth: int | None = None  # of the outermost call of a compiled module, while it runs
        self.compiled_entries = self.frames_compiled = 0  # code of torch.compile that ran outside of such calls
        self.unseen_writes: Callable[[], None] = lambda: None  # called when something may have written unseen
        self.caller = 0  # the line outside every package that called the model
        self.caller_of: Callable[[Any], int] = lambda frame: 0
        self.line_of_step: Callable[[Optimizer, Any], int] = lambda optimizer, frame: 0
        self.training_is: Callable[[bool], None] = lambda training: None  # called at each outermost call
        self.watches_training = False  # module calls decide whether anything is recorded
        self.paused = False  # this step is not recorded: calls are counted, modules are not noted
        self.borders: Any = None  # what is told of each call, see borders.py
        self.failed = 0, 0  # id of the last exception that left a call, context of the innermost such call
        self.handles: list[Any] = []
        self.end_watch: Callable[[], None] = lambda: None
        self.observer: ModuleValues | None = None  # is told of the calls of the model's modules

    # ------------------------------------------------------------------------------------------------- open, close
    def open(self) -> None:
        """Start to follow module calls and optimizers."""
        self.thread = threading.get_ident()
        self.learn_names()
        self.enter_place(0, -1, FORWARD, not self.filtered)
        self.handles = [
            register_optimizer_step_pre_hook(self.optimizer_pre_hook),
            register_optimizer_step_post_hook(self.optimizer_post_hook),
        ]
        TRACKERS.append(self)
        wrap_while_needed()
        self.frames_compiled = frames_compiled()
        self.end_watch = watch_compiled(self.compiled_code)

    def close(self) -> None:
        """Stop; every hook and wrapper is taken off."""
        if self in TRACKERS:
            TRACKERS.remove(self)
        wrap_while_needed()
        self.end_watch()
        self.end_watch = lambda: None
        if not self.compiled_calls:  # each frame ran when it was made
            self.compiled_entries += max(0, frames_compiled() - self.frames_compiled)
        for handle in self.handles:
            handle.remove()
        self.handles.clear()

    def pause(self) -> None:
        """What follows is not recorded."""
        self.paused = True
        wrap_while_needed()

    def resume(self) -> None:
        """What follows is recorded."""
        self.paused = False
        wrap_while_needed()
        self.enter_place(0, -1, OPTIMIZER if self.optimizing else FORWARD, not self.filtered)

    def needs_calls(self) -> bool:
        """Whether module calls must be seen: not in a step that is not recorded and that ends without them."""
        return not self.paused or self.watches_training or not (self.manual or self.first_optimizer is not None)

    def learn_names(self, root: nn.Module | None = None) -> None:
        """Take the names from the model, or from a module that was called with no model given."""
        model = root if root is not None else self.model() if self.model is not None else None
        if model is None:
            return
        found: dict[int, tuple[nn.Module, list[str]]] = {}
        for name, module in model.named_modules(remove_duplicate=False):
            found.setdefault(id(module), (module, []))[1].append(name)
        for key, (module, names) in found.items():
            known = self.known.get(key)
            if known is None or known.module() is not module or known.names != names:
                self.known[key] = Known(
                    module, names, [self.number(n) for n in names], [self.matches(n) for n in names]
                )

    def number(self, name: str) -> int:
        if name not in self.numbers:
            self.numbers[name] = self.tables.modules.add(name)
        return self.numbers[name]

    def matches(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.patterns)

    @property
    def module(self) -> int:
        """Number of the module that runs; 0 outside."""
        return 0 if self.path is None else self.numbers[self.path]

    # ------------------------------------------------------------------------------------------------- places
    def enter_place(self, module: int, call: int, phase: int, measured: bool, training: bool | None = None) -> None:
        """From here on operators belong to a new context. Nothing is noted of a step that is not recorded."""
        if self.paused:
            return
        self.go_to(self.add_context(module, call, phase, training), measured)

    def add_context(self, module: int, call: int, phase: int, training: bool | None) -> int:
        """A new context, by number."""
        caller, mode = (0, -1) if training is None else (self.caller, int(training))
        self.tables.contexts.extend(pack_context(module, call, self.step, max(self.micro_step, 0), phase, caller, mode))
        self.contexts += 1
        return self.contexts - 1

    def go_to(self, context: int, measured: bool) -> None:
        self.context, self.measured = context, measured
        number = next_sequence_number()
        self.tables.positions.extend(pack_position(number, context))
        if self.filtered:
            self.positions[0].append(number)
            self.positions[1].append(measured)

    def measured_at(self, number: int) -> bool:
        """Whether statistics are asked for where a node was made."""
        i = bisect_right(self.positions[0], number) - 1
        return i >= 0 and self.positions[1][i]

    # ------------------------------------------------------------------------------------------------- module calls
    def forward_pre_hook(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A module is called."""
        again = graph_task() != -1  # a checkpoint's region runs again
        known = self.known.get(id(module))
        if known is None or known.module() is not module:
            known = self.known_of(module, again)
        if not self.stack and not again and known is not None:
            self.outermost_call(module)
        if self.compiled_depth is None and is_compiled(module):
            self.compiled_depth = len(self.stack)
        self.stack.append((self.context, self.measured, self.path))
        if self.borders is not None:
            if self.paused or again:
                self.borders.skip()
            else:
                self.borders.enter(args, kwargs)
        if self.paused or known is None:
            if self.observer is not None and not self.paused and self.path is not None:
                self.observer.unowned += 1
            return
        i = 0
        if len(known.names) > 1 and self.path is not None:  # registered more than once: the name below its caller
            prefix = self.path + "." if self.path else ""
            i = next((j for j, name in enumerate(known.names) if name.startswith(prefix)), 0)
        if known.step != self.step:
            known.step, known.calls, known.again = self.step, 0, 0
        call = known.again if again else known.calls
        if again:
            known.again += 1
        else:
            known.calls += 1
        self.path = known.names[i]
        self.enter_place(known.numbers[i], call, FORWARD, self.measured or known.measured[i], module.training)
        if self.observer is not None:
            self.observer.before(type(known.module()), self.path, args, kwargs)

    def forward_hook(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """The call is over; `output` is None if it raised."""
        if self.observer is not None:
            self.observer.after(output)
        if output is None and (error := sys.exc_info()[1]) is not None and self.failed[0] != id(error):
            self.failed = id(error), self.context
        if self.stack:
            if self.borders is not None:
                self.borders.leave(len(self.stack) - 1, output)
            self.return_to(len(self.stack) - 1)
        if is_compiled(module):
            self.compiled_calls += 1
            self.unseen_writes()

    def return_to(self, depth: int) -> None:
        """Leave the call that was entered at this depth, and whatever was left open inside it."""
        if len(self.stack) > depth:
            context, measured, self.path = self.stack[depth]
            del self.stack[depth:]
            if self.compiled_depth is not None and depth <= self.compiled_depth:
                self.compiled_depth = None
            self.go_to(context, measured)

    def compiled_code(self, again: bool) -> None:
        """Code that torch.compile made is about to run: what it writes is not seen."""
        if threading.get_ident() == self.thread:
            self.unseen_writes()
            if again and self.compiled_depth is None and not self.paused:
                self.compiled_entries += 1

    def known_of(self, module: nn.Module, again: bool) -> Known | None:
        """What is known of a module that was not met before: one put into the model since, or with no model a new root."""
        self.known.pop(id(module), None)
        if self.model is not None:
            if self.learned == self.step:  # once a step: modules made inside forward are new in each call
                return None
            self.learned = self.step
            self.learn_names()
        elif not self.stack and not again:
            self.learn_names(module)
        original = module._modules["_orig_mod"] if "_orig_mod" in module._modules else None  # noqa: SIM401 - ScriptModules
        if original is not None and id(module) not in self.known and id(original) in self.known:
            return self.known[id(original)]  # what torch.compile made of a module stands for it
        return self.known.get(id(module))

    # ------------------------------------------------------------------------------------------------- other threads
    @property
    def foreign_path(self) -> list[int]:
        """Contexts of the modules that run in this other thread."""
        try:
            path: list[int] = self.local.path
        except AttributeError:
            path = self.local.path = []
        return path

    def foreign_place(self, module: nn.Module) -> int:
        """A context for a module call in another thread."""
        self.foreign_calls += 1
        known = self.known.get(id(module))
        if known is None or known.module() is not module:
            return self.foreign_path[-1] if self.foreign_path else 0
        return self.add_context(known.numbers[0], -1, FORWARD, module.training)

    def label_foreign(self, output: Any) -> None:
        """The call is over: label the nodes that it made."""
        context = self.foreign_path.pop()
        pending = [t.grad_fn for t in tree_leaves(output) if isinstance(t, torch.Tensor)]
        while pending:
            node: Any = pending.pop()
            if node is not None and FOREIGN_KEY not in node.metadata and node._sequence_nr() != NOT_NUMBERED:
                node.metadata[FOREIGN_KEY] = context
                pending += [following for following, _ in node.next_functions]

    # ------------------------------------------------------------------------------------------------- steps
    def outermost_call(self, module: nn.Module) -> None:
        """The model is called from outside: a new micro step, or a new step in a loop without an optimizer."""
        if self.optimizing and not runs_below(sys._getframe(), self.optimizer_code):
            self.left_optimizer_by_exception()
        if self.calls_end_steps and not self.manual and self.first_optimizer is None:
            self.end_step()
        # Decided when the next call comes: what follows a call (loss, backward, a hand-written update) belongs to its step.
        self.calls_end_steps = not (torch.is_grad_enabled() and an_optimizer_was_made())
        self.micro_step += 1
        self.caller = self.caller_of(sys._getframe(3))
        self.training_is(module.training)
        self.enter_place(0, -1, OPTIMIZER if self.optimizing else FORWARD, not self.filtered)

    # ------------------------------------------------------------------------------------------------- optimizers
    def optimizer_pre_hook(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if is_compiling() or threading.get_ident() != self.thread:
            return
        self.optimizing += 1
        if self.optimizing > 1:  # an optimizer that wraps another
            return
        if self.first_optimizer is None:
            self.first_optimizer = weakref.ref(optimizer)
        self.optimizer_code = sys._getframe(1).f_code
        self.has_closure = any(a is not None for a in args[1:]) or kwargs.get("closure") is not None
        skip = self.paused or self.has_closure
        self.optimizer_line = 0 if skip else self.line_of_step(optimizer, sys._getframe(1))
        self.parameters_step(optimizer, False)
        self.enter_place(0, -1, OPTIMIZER, not self.filtered)

    def optimizer_post_hook(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if is_compiling() or threading.get_ident() != self.thread or not self.optimizing:
            return
        self.optimizing -= 1
        if self.optimizing:
            return
        self.has_closure, self.optimizer_line = False, 0
        self.parameters_step(optimizer, True)
        first = self.first_optimizer() if self.first_optimizer is not None else None
        if not self.manual and (first is None or first is optimizer):
            self.first_optimizer = weakref.ref(optimizer)  # the first is gone: this one takes its place
            self.end_step()
        else:
            self.enter_place(0, -1, FORWARD, not self.filtered)

    def optimizer_context(self, frame: Any) -> int:
        """The context of an operator while an optimizer steps: its own, or forward when its closure runs the model."""
        if id(frame.f_code) not in self.codes_of_optimizers:
            if not runs_below(frame, self.optimizer_code):
                self.left_optimizer_by_exception()
                return self.context
            if is_of_optimizers(frame.f_code):
                self.codes_of_optimizers[id(frame.f_code)] = frame.f_code
        if self.has_closure and not self.stack and torch.is_grad_enabled():
            context, measured = self.context, self.measured
            self.enter_place(0, -1, FORWARD, measured)
            closure, self.context, self.measured = self.context, context, measured
            return closure
        return self.context

    def left_optimizer_by_exception(self) -> None:
        """Torch calls no hook when `step` raises: the step is not over, but the optimizer is."""
        self.optimizing, self.has_closure, self.optimizer_line = 0, False, 0
        self.enter_place(0, -1, FORWARD, not self.filtered)

    def end_step(self) -> None:
        """What follows belongs to the next step."""
        self.step += 1
        self.micro_step = -1
        self.calls_end_steps = False
        if len(self.positions[0]) > MOST_POSITIONS:
            for column in self.positions:
                del column[: -MOST_POSITIONS // 2]
        self.enter_place(0, -1, FORWARD, not self.filtered)
        self.step_ends(self.step)


def is_compiled(module: nn.Module) -> bool:
    """Whether a module is what `torch.compile` made of one."""
    return module._compiled_call_impl is not None or "_orig_mod" in module._modules


TRACKERS: list[ModuleTracker] = []  # those of the monitors that are open, in all threads
WRAPPERS: list[Any] = []  # what `nn.Module.__call__` is while there are any
ORIGINAL = "_dispatchmon_original"


def wrap_while_needed() -> None:
    """Wrap `nn.Module.__call__` while some monitor needs to see module calls."""
    if any(tracker.needs_calls() for tracker in TRACKERS):
        wrap_module_call()
    else:
        unwrap_module_call()


def wrap_module_call() -> None:
    """Replace `nn.Module.__call__` until `unwrap_module_call`."""
    if WRAPPERS:
        return
    original: Any = nn.Module.__call__
    plain = original is plain_module_call

    @functools.wraps(original)
    def __call__(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if is_compiling() or __call__ not in WRAPPERS or jit_tracing_state() is not None:
            return original(self, *args, **kwargs)
        entered, output = trackers_here(), None
        try:
            before_call(entered, self, args, kwargs)
            if plain and self._compiled_call_impl is None:  # the original without its frame: deep models stay callable
                output = self._call_impl(*args, **kwargs)
            else:
                output = original(self, *args, **kwargs)
            return output
        finally:
            after_call(entered, self, args, kwargs, output)

    setattr(__call__, ORIGINAL, original)
    never_compile(__call__, but_callees=True)
    nn.Module.__call__ = __call__  # type: ignore[method-assign]
    dynamo_takes_for_plain(__call__ if plain else plain_module_call)
    WRAPPERS.append(__call__)


def trackers_here() -> list[tuple[ModuleTracker, int]]:
    """
    (tracker, depth) of those that are told of a module call; -1 for those of another thread.

    A module may run in a thread whose operators are not recorded, but whose backward pass may be. Autograd numbers are per
    thread and a node does not say whose it is: the nodes made there are labelled with their place.
    """
    thread = threading.get_ident()
    # In backward, a device's own thread speaks for the one that waits for it.
    away = any(tracker.thread != thread for tracker in TRACKERS) and graph_task() == -1
    return [(t, -1 if away and t.thread != thread else len(t.stack)) for t in TRACKERS]


def before_call(entered: list[tuple[ModuleTracker, int]], module: nn.Module, args: Any, kwargs: Any) -> None:
    """A module is called."""
    for tracker, depth in entered:
        if depth >= 0:
            tracker.forward_pre_hook(module, args, kwargs)
        else:
            tracker.foreign_path.append(tracker.foreign_place(module))


def after_call(
    entered: list[tuple[ModuleTracker, int]], module: nn.Module, args: Any, kwargs: Any, output: Any
) -> None:
    """The call is over, and whatever was left open inside it."""
    for tracker, depth in reversed(entered):
        if depth < 0:
            tracker.label_foreign(output)
        elif len(tracker.stack) > depth:
            tracker.return_to(depth + 1)
            tracker.forward_hook(module, args, kwargs, output)


def unwrap_module_call() -> None:
    """Put `nn.Module.__call__` back."""
    for wrapper in WRAPPERS:
        if nn.Module.__call__ is wrapper:  # else: wrapped again by somebody else since; ours passes everything on
            nn.Module.__call__ = getattr(wrapper, ORIGINAL)  # type: ignore[method-assign]
        dynamo_takes_for_plain(plain_module_call)
    WRAPPERS.clear()


for function in (
    trackers_here,
    before_call,
    after_call,
    ModuleTracker.optimizer_pre_hook,
    ModuleTracker.optimizer_post_hook,
    ModuleTracker.compiled_code,
):
    never_compile(function)
