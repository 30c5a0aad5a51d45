"""
Seeing the calls of modules: `nn.Module.__call__` is wrapped while a monitor is open.

Torch's own global hooks would give the same two calls, but break `torch.compile(fullgraph=True)`, add graph breaks and lose
the end of a call on KeyboardInterrupt; hooks on modules switch off the fast path of `nn.TransformerEncoderLayer` and travel
with pickle (`docs/attribution.md`).
"""

from __future__ import annotations

import functools
import threading
from typing import Any, Protocol

from torch import nn
from torch.compiler import is_compiling

from dispatchmon.attribution.other_threads import OtherThreads
from dispatchmon.torch_internals import (
    dynamo_takes_for_plain,
    graph_task,
    jit_tracing_state,
    never_compile,
    plain_module_call,
)


class Tracker(Protocol):
    """Who is told of the calls: a `ModuleTracker`, in module_tracker.py."""

    thread: int  # whose calls it follows
    threads: OtherThreads  # those of all others
    stack: list[Any]  # the calls that are open

    def needs_calls(self) -> bool: ...
    def forward_pre_hook(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None: ...
    def forward_hook(self, module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None: ...
    def return_to(self, depth: int) -> None: ...


TRACKERS: list[Tracker] = []  # those of the monitors that are open, in all threads
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


def trackers_here() -> list[tuple[Tracker, int]]:
    """
    (tracker, depth) of those that are told of a module call; -1 for those of another thread.

    A module may run in a thread whose operators are not recorded, but whose backward pass may be. Autograd numbers are per
    thread and a node does not say whose it is: the nodes made there are labelled with their place.
    """
    thread = threading.get_ident()
    # In backward, a device's own thread speaks for the one that waits for it.
    away = any(tracker.thread != thread for tracker in TRACKERS) and graph_task() == -1
    return [(t, -1 if away and t.thread != thread else len(t.stack)) for t in TRACKERS]


def before_call(entered: list[tuple[Tracker, int]], module: nn.Module, args: Any, kwargs: Any) -> None:
    """A module is called."""
    for tracker, depth in entered:
        if depth >= 0:
            tracker.forward_pre_hook(module, args, kwargs)
        else:
            tracker.threads.enter(module)


def after_call(entered: list[tuple[Tracker, int]], module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
    """The call is over, and whatever was left open inside it."""
    for tracker, depth in reversed(entered):
        if depth < 0:
            tracker.threads.leave(output)
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


for function in (trackers_here, before_call, after_call):
    never_compile(function)
