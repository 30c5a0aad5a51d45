"""
An independent ground truth for attribution: every autograd node is labelled, by walking the graph after each torch
function, with the call that made it and the module that ran. It knows nothing of sequence numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from dispatchmon import DispatchMonitor
from dispatchmon.recording.dispatch import RecordingMode
from recorded import Row, rows_of

NOT_NUMBERED = 2**64 - 1


class Truth(TorchFunctionMode):
    """Labels each new node with (number of the torch function call, innermost module, its call)."""

    def __init__(self, model: nn.Module, rearm: bool) -> None:
        super().__init__()
        self.names: dict[int, str] = {}
        for name, module in model.named_modules():
            self.names[id(module)] = name
        self.rearm = rearm  # a reentrant checkpoint builds nodes inside the engine, where this mode is not active
        self.call, self.calls = 0, [0]
        self.path: list[str | None] = [None]
        self.call_of_event: dict[int, int] = {}
        self.truth_of_event: dict[int, Any] = {}

    def pre(self, module: nn.Module, args: Any) -> None:
        self.path.append(self.names.get(id(module), self.path[-1]))

    def post(self, module: nn.Module, args: Any, output: Any) -> None:
        self.path.pop()

    def operator(self, event: int) -> None:
        """An operator is dispatched: who called it, and what label its node carries."""
        self.call_of_event[event] = self.calls[-1]
        node = torch._C._current_autograd_node()
        if node is not None and node._sequence_nr() != NOT_NUMBERED:
            self.truth_of_event[event] = node.metadata.get("truth")

    def label(self, objects: Any, label: tuple[int, str | None]) -> None:
        pending = [t.grad_fn for t in tree_leaves(objects) if isinstance(t, torch.Tensor) and t.grad_fn is not None]
        while pending:
            node = pending.pop()
            if node is None or "truth" in node.metadata or node._sequence_nr() == NOT_NUMBERED:
                continue
            node.metadata["truth"] = ("function", label[1]) if hasattr(node, "_forward_cls") else label
            pending.extend(following for following, _ in node.next_functions)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.call += 1
        call, name = self.call, getattr(func, "__name__", str(func))
        if name in ("__get__", "register_hook"):
            return func(*args, **kwargs)
        if name in ("backward", "grad") and self.rearm:
            return self.backward(func, args, kwargs, call, name)
        self.calls.append(call)
        module = self.path[-1]
        try:
            output = func(*args, **kwargs)
        finally:
            self.calls.pop()
        self.label((output, args[:1]), (call, module))
        return output

    def backward(self, func: Any, args: Any, kwargs: Any, call: int, name: str) -> Any:
        engine = torch.autograd._engine_run_backward

        def run(*a: Any, **k: Any) -> Any:
            with self:
                return engine(*a, **k)

        torch.autograd._engine_run_backward = run
        try:
            output = func(*args, **kwargs)
        finally:
            torch.autograd._engine_run_backward = engine
        if name == "grad":
            self.label(output, (call, self.path[-1]))
        return output


def judged(
    model: nn.Module,
    run: Callable[[nn.Module], Any],
    backward: Callable[[Any], None],
    path: Path,
    monkeypatch: Any,
    rearm: bool = False,
) -> tuple[list[Row], Truth]:
    """The rows of a forward and backward pass, and the truth about each event."""
    truth = Truth(model, rearm)
    before = RecordingMode.before

    def spied(self: RecordingMode, *args: Any) -> Any:
        pending = before(self, *args)
        truth.operator(pending[0])
        return pending

    monkeypatch.setattr(RecordingMode, "before", spied)
    with DispatchMonitor(model, path, quiet=True) as monitor:
        handles = [
            register_module_forward_pre_hook(truth.pre),
            register_module_forward_hook(truth.post, always_call=True),
        ]
        try:
            with truth:
                output = run(model)
                truth.label(output, (truth.call, truth.path[-1]))
                backward(output)
        finally:
            for handle in handles:
                handle.remove()
    assert monitor.error is None, monitor.error
    return rows_of(path), truth
