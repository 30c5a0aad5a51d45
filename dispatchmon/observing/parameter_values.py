"""
What happens to each parameter in an optimizer's step, and the gradient that backward left for it.

Two events per parameter and step: before the optimizer its `value` and the `grad` as the optimizer sees it, after it the
`update` and the optimizer's `state`. One more after each backward pass that changed its gradient: `raw_grad`, before
anybody clips or unscales it. A parameter without a gradient has no event. Of a distributed parameter it is the shard of
this rank.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from threading import get_ident
from time import perf_counter_ns
from typing import Any

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from dispatchmon.module_tracker import ModuleTracker
from dispatchmon.observing.event_writer import UNTIMED, EventWriter, Seen
from dispatchmon.observing.module_values import is_of
from dispatchmon.packed.records import FOREIGN, FORWARD, LIVE, NO_STORAGE, OPTIMIZER, ROW
from dispatchmon.packed.totals import NORM
from dispatchmon.statistics.updates import Updates
from dispatchmon.torch_internals import DisableTorchFunction, after_backward, graph_task, local_part, never_compile

Names = dict[int, tuple[weakref.ref[nn.Module], str, str]]  # id of a parameter -> its module, its key there, its name


class ParameterValues:
    """Records the parameters of the optimizers that a tracker sees."""

    def __init__(
        self,
        writer: EventWriter,
        tracker: ModuleTracker,
        names: Names,
        name_of: Callable[[Tensor], str | None],
        types: tuple[str, ...],
        phases: Iterable[str],
        update_bytes: int,
        line: Callable[[], int],
    ) -> None:
        self.writer, self.tracker, self.names, self.name_of = writer, tracker, names, name_of
        self.types, self.phases, self.line = types, frozenset(phases), line
        statistics = writer.values.statistics
        self.updates = None if statistics is None or not update_bytes else Updates(statistics, update_bytes)
        self.asked: dict[str, bool] = {}  # by name of a module
        self.learned = -1  # modules that were known when names were looked up last
        self.left: dict[int, tuple[int, int]] = {}  # id of a parameter -> the gradient that was seen last
        self.before_norms: dict[int, float] = {}
        self.handle: Any = None
        self.armed = False  # the hook has not run yet in this step
        self.late = False  # the optimizer sees its gradients only inside its step
        self.backward_number = writer.operator("backward", "parameter")
        self.end: Callable[[], None] = lambda: None

    def open(self) -> None:
        """Start to watch backward passes."""
        if "backward" in self.phases:
            me = weakref.ref(self)
            self.end = after_backward(lambda: values.backward_over() if (values := me()) is not None else None)

    def close(self) -> None:
        """Stop, and take every hook off."""
        self.end()
        self.disarm()

    # ------------------------------------------------------------------------------------------------- which, and where
    def wanted(self, name: str | None) -> bool:
        """Whether `modules` and `module_types` ask for the module that owns a parameter, or for one around it."""
        owner = "" if name is None else name.rpartition(".")[0]
        found = self.asked.get(owner)
        if found is None:
            parts = owner.split(".") if owner else []
            around = [".".join(parts[:i]) for i in range(len(parts) + 1)]
            found = any(self.tracker.names.matches(each) for each in around)
            if self.types:
                kinds = [
                    type(module)
                    for known in self.tracker.names.known.values()
                    if (module := known.module()) is not None and not set(around).isdisjoint(known.names)
                ]
                found = found and any(is_of(kind, self.types) for kind in kinds)
            self.asked[owner] = found
        return found

    def learn(self) -> None:
        """Without a model: the names of the parameters of what was called."""
        if self.tracker.names.model is not None or self.learned == len(self.tracker.names.known):
            return
        self.learned = len(self.tracker.names.known)
        for known in list(self.tracker.names.known.values()):
            if (module := known.module()) is not None:
                for key, parameter in module._parameters.items():
                    if parameter is not None:
                        name = f"{known.names[0]}.{key}" if known.names[0] else key
                        self.names.setdefault(id(parameter), (known.module, key, name))

    def of_optimizer(self, optimizer: Optimizer) -> Iterator[tuple[Tensor, str]]:
        """The parameters that are asked for, each once, with their names."""
        seen: set[int] = set()
        for i, group in enumerate(optimizer.param_groups):
            for j, parameter in enumerate(group["params"]):
                name = self.name_of(parameter)
                if id(parameter) not in seen and self.wanted(name):
                    seen.add(id(parameter))
                    yield parameter, f"param_groups[{i}].params[{j}]" if name is None else name

    def context(self, name: str, phase: int) -> int:
        """The module that owns a parameter, as a place."""
        owner = name.rpartition(".")[0]
        module = self.tracker.names.number(owner) if not name.startswith("param_groups[") else 0
        return self.tracker.add_context(module, -1, phase, None)

    def seen(self, role: str, arg: str, tensor: Tensor, name: str) -> Seen:
        tensor = local_part(tensor)
        self.writer.values.name(tensor, name)
        return self.writer.argument(role, arg), tensor

    # ------------------------------------------------------------------------------------------------- an optimizer
    def arm(self, optimizer: Optimizer) -> None:
        """An optimizer is about to step: look when its own hooks, which may clip, have run."""
        self.disarm()
        if not self.writer.active or "optimizer" not in self.phases:
            return
        me = weakref.ref(self)

        def hook(optimizer: Optimizer, *_: Any) -> None:
            if (values := me()) is not None and values.armed:  # a step that calls its parent's runs its hooks again
                values.armed = False
                values.before(optimizer)

        never_compile(hook)
        self.armed = True
        self.handle = optimizer.register_step_pre_hook(hook)

    def disarm(self) -> None:
        if self.handle is not None:
            self.handle.remove()
            self.handle = None

    def before(self, optimizer: Optimizer) -> None:
        """Values, and gradients as the optimizer sees them."""
        if not self.writer.active:
            return
        try:
            with DisableTorchFunction():
                self.see_before(optimizer)
        except Exception as error:
            self.writer.guarded(error)

    def see_before(self, optimizer: Optimizer) -> None:
        self.learn()
        # A closure computes the gradients inside the step; a fused optimizer unscales them there, in place.
        self.late = self.tracker.steps.has_closure or getattr(optimizer, "grad_scale", None) is not None
        operator, source = self.writer.operator(type(optimizer).__name__, "parameter"), self.line()
        self.before_norms.clear()
        kept: list[Tensor] = []
        for parameter, name in self.of_optimizer(optimizer):
            gradient = parameter.grad
            if gradient is None and not (self.tracker.steps.has_closure and parameter.requires_grad):
                continue
            seen = [self.seen("value", "value", parameter, name)]
            if gradient is not None and not self.late:
                seen.append(self.seen("grad", "grad", gradient, f"{name}.grad"))
            kept.append(local_part(parameter))
            context = self.context(name, OPTIMIZER)
            first = len(self.writer.values.rows)
            self.writer.write(operator, context, LIVE, source, perf_counter_ns(), UNTIMED, seen, name)
            if self.writer.alerts is not None:
                self.note_norm(parameter, first)
        if self.updates is not None:
            self.updates.keep(kept)

    def note_norm(self, parameter: Tensor, first: int) -> None:
        """For rules about the ratio of an update: the norm of the value."""
        values = self.writer.values
        if len(values.rows) > first and values.statistics is not None:  # else: they were just handed over
            slot = ROW.unpack_from(values.rows, first)[5]
            if slot >= 0:
                self.before_norms[id(parameter)] = float(values.statistics.at(slot)[NORM])

    def after(self, optimizer: Optimizer) -> None:
        """Updates and states; gradients that were not there, or not final, before."""
        self.disarm()
        if not self.writer.active or "optimizer" not in self.phases:
            return
        try:
            with DisableTorchFunction():
                self.see_after(optimizer)
        except Exception as error:
            self.writer.guarded(error)

    def see_after(self, optimizer: Optimizer) -> None:
        operator, source = self.writer.operator(type(optimizer).__name__, "parameter"), self.line()
        for parameter, name in self.of_optimizer(optimizer):
            if parameter.grad is None:
                continue
            seen = [self.seen("grad", "grad", parameter.grad, f"{name}.grad")] if self.late else []
            state = optimizer.state.get(parameter)
            for key, value in state.items() if isinstance(state, dict) else ():
                if isinstance(value, Tensor) and (value.dim() or not parameter.dim()) and key != "step":
                    seen.append(self.seen("state", str(key), value, f"{name}.{key}"))
            rows = self.update_row(parameter)
            if seen or rows:
                context = self.context(name, OPTIMIZER)
                self.writer.write(operator, context, LIVE, source, perf_counter_ns(), UNTIMED, seen, name, rows)

    def update_row(self, parameter: Tensor) -> list[bytes]:
        """The row of what was added, with name and shape of its parameter; no tensor of the program holds the number."""
        local = local_part(parameter)
        slot = None if self.updates is None else self.updates.measure(local)
        if slot is None:
            return []
        values, alerts = self.writer.values, self.writer.alerts
        shape = local.shape, local.stride(), local.storage_offset(), local.dtype
        tag = values.tag_of(local)
        if tag is None:
            return []
        if alerts is not None and values.statistics is not None:
            norm = self.before_norms.get(id(parameter))
            alerts.ratio = float(values.statistics.at(slot)[NORM]) / norm if norm and slot >= 0 else None
        number = self.writer.argument("update", "update")
        return [ROW.pack(-1, number, values.geometries[shape][0], NO_STORAGE, tag[1], slot)]

    # ------------------------------------------------------------------------------------------------- backward
    def backward_over(self) -> None:
        """A backward pass is over: the gradients that it changed."""
        if not self.writer.active or get_ident() != self.tracker.thread or graph_task() != -1:
            return
        try:
            with DisableTorchFunction():
                self.see_gradients()
        except Exception as error:
            self.writer.guarded(error)

    def see_gradients(self) -> None:
        self.learn()
        source = self.line()
        for module, key, name in list(self.names.values()):
            owner = module()
            parameter = None if owner is None else owner._parameters.get(key)
            if parameter is not None and parameter.grad is not None and self.wanted(name):
                self.see_gradient(parameter, parameter.grad, name, source)

    def see_gradient(self, parameter: Tensor, gradient: Tensor, name: str, source: int) -> None:
        tag = self.writer.values.tag_of(local_part(gradient))
        now = id(gradient) if tag is None else tag[0] >> 32, gradient._version
        if self.left.get(id(parameter)) == now:
            return
        self.left[id(parameter)] = now
        context = self.context(name, FORWARD)
        seen = [self.seen("raw_grad", "raw_grad", gradient, f"{name}.grad")]
        self.writer.write(
            self.backward_number, context, FOREIGN - context, source, perf_counter_ns(), UNTIMED, seen, name
        )
