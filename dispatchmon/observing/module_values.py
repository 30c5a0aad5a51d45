"""
What goes into a module and comes out, and the gradients of both.

Inputs are measured before the module's forward, outputs after, so an in-place module hides nothing. Gradients come from
tensor hooks: they add no node to the graph, as a module's backward hooks would, and so change no bit. Nothing here keeps
a tensor, a module or a node alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from time import perf_counter_ns
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import unserializable_hook

from dispatchmon.attribution.nodes import BackwardNodes
from dispatchmon.module_tracker import ModuleTracker
from dispatchmon.observing.event_writer import UNTIMED, EventWriter, Seen
from dispatchmon.packed.records import FOREIGN, LIVE, RECOMPUTED
from dispatchmon.torch_internals import DisableTorchFunction, graph_task, never_compile, recomputing
from dispatchmon.values.containers import ATOMS, DEEPEST, members

MOST_MEMBERS = 1024  # of one container that are looked at


class Call(NamedTuple):
    """A module call that is recorded and not over yet."""

    depth: int  # in the tracker's stack
    name: str
    operator: int
    context: int
    node: int  # LIVE, or what says that it is no ordinary forward
    source: int
    watch: bool  # whether gradients of its outputs are wanted
    shown: bool  # whether its phase is
    start: int
    own: int  # the monitor's own time until then


class ModuleValues:
    """Records the module calls that a tracker sees."""

    def __init__(
        self,
        writer: EventWriter,
        tracker: ModuleTracker,
        nodes: BackwardNodes,
        names: Sequence[str],
        types: Sequence[str],
        phases: Iterable[str],
        line: Any,
    ) -> None:
        self.writer, self.tracker, self.nodes, self.line = writer, tracker, nodes, line
        self.names, self.types, self.phases = tuple(names), tuple(types), frozenset(phases)
        self.operators: dict[tuple[str, type], int] = {}  # -1: not asked for
        self.calls: list[Call] = []
        self.leaf_handles: list[Any] = []
        self.unwatched = 0  # gradients that could not be watched without changing the graph
        self.unowned = 0  # calls of modules that the model does not own
        self.cut_short = 0  # containers with more members than are looked at

    def new_step(self) -> None:
        """Hooks on leaf tensors, which outlive the graph, go."""
        for handle in self.leaf_handles:
            handle.remove()
        self.leaf_handles.clear()

    def operator_of(self, name: str, kind: type) -> int:
        """Number of the class name, or -1 if neither `modules` nor `module_types` asks for it."""
        number = self.operators.get((name, kind))
        if number is None:
            wanted = any(fnmatchcase(name, pattern) for pattern in self.names) and is_of(kind, self.types)
            number = self.writer.operator(kind.__name__, "module") if wanted else -1
            self.operators[name, kind] = number
        return number

    # ------------------------------------------------------------------------------------------------- one call
    def before(self, kind: type, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A module is about to run; the tracker has entered its place."""
        operator = self.operator_of(name, kind)
        if operator < 0 or not self.writer.active:
            return
        context, tracker = self.tracker.contexts.current, self.tracker
        node, phase, again = LIVE, "forward", False
        if graph_task() != -1:
            again = recomputing()
            phase = self.nodes.phase(optimizing=False)
            node = RECOMPUTED if phase == "recompute" else FOREIGN - context
        watch = "backward" in self.phases and torch.is_grad_enabled() and not again
        shown = phase in self.phases
        now = perf_counter_ns()
        call = Call(
            len(tracker.stack),
            name,
            operator,
            context,
            node,
            self.line() if shown or watch else 0,
            watch,
            shown,
            now,
            0,
        )
        self.calls.append(call)
        if shown or watch:
            try:
                self.see(call, "input", [("input", args), ("kwargs", kwargs)], watch, UNTIMED)
            except Exception as error:
                self.writer.guarded(error)
        own = self.writer.buffer.own_ns
        self.calls[-1] = call._replace(start=perf_counter_ns(), own=own)

    def after(self, output: Any) -> None:
        """The call at the tracker's place is over; None if it raised or returned nothing."""
        depth = len(self.tracker.stack)
        while self.calls and self.calls[-1].depth > depth:
            self.calls.pop()
        if not self.calls or self.calls[-1].depth != depth:
            return
        call = self.calls.pop()
        watch = call.watch and torch.is_grad_enabled()
        if output is None or not self.writer.active or not (call.shown or watch):
            return
        duration = perf_counter_ns() - call.start - (self.writer.buffer.own_ns - call.own)
        try:
            self.see(call, "output", [("output", output)], watch, max(duration, 0))
        except Exception as error:
            self.writer.guarded(error)

    def see(self, call: Call, role: str, given: list[tuple[str, Any]], watch: bool, duration: int) -> None:
        """The event of one side of a call, and hooks for its gradients."""
        seen: list[Seen] = []
        entered = perf_counter_ns()
        with DisableTorchFunction():
            for place, value in given:
                for where, tensor in self.tensors(place, value, DEEPEST):
                    if call.shown:
                        seen.append((self.writer.argument(role, where), tensor))
                    if watch and tensor.requires_grad:
                        self.watch(call, self.writer.argument(f"grad_{role}", where), tensor)
        self.writer.buffer.own_ns += perf_counter_ns() - entered
        if call.shown:
            self.writer.write(
                call.operator, call.context, call.node, call.source, call.start, duration, seen, call.name
            )

    def tensors(self, place: str, value: Any, depth: int) -> Iterator[tuple[str, Tensor]]:
        """Each tensor in a value, with its place, as `input[0]`, `kwargs.mask`, `output.logits`."""
        if isinstance(value, Tensor):
            yield place, value
        elif depth and type(value) not in ATOMS:
            found = members(value)
            for name, inner in islice(found, MOST_MEMBERS):
                yield from self.tensors(place + name, inner, depth - 1)
            if next(iter(found), None) is not None:
                self.cut_short += 1

    # ------------------------------------------------------------------------------------------------- gradients
    def watch(self, call: Call, argument: int, tensor: Tensor) -> None:
        """
        See the gradient of the value that the tensor holds now; a later in-place write leaves the hook at the old node.

        A view whose base was written since the view was made has no node yet: torch makes it when it is asked for. Asking
        early changes the order in which gradients are summed, and `register_hook` without asking ends in a segmentation
        fault (2.8 to 2.14.1), so those are counted instead.
        """
        if tensor._is_view() and (tensor._base is None or tensor._base._version):
            self.unwatched += 1
            return
        me, node = weakref.ref(self), FOREIGN - call.context
        operator, context, source, name = call.operator, call.context, call.source, call.name

        def hook(gradient: Tensor | None) -> None:
            values = me()
            if gradient is None or values is None or not values.writer.active:
                return
            try:
                values.writer.write(
                    operator, context, node, source, perf_counter_ns(), UNTIMED, [(argument, gradient)], name
                )
            except Exception as error:
                values.writer.guarded(error)

        never_compile(hook)
        unserializable_hook(hook)  # torch.save(tensor) would warn
        try:
            handle = tensor.register_hook(hook)
        except RuntimeError:
            self.unwatched += 1
            return
        if tensor.is_leaf:
            self.leaf_handles.append(handle)


def is_of(kind: type, types: Sequence[str]) -> bool:
    """Whether a class, or one it is made from, is called one of these; without any, every class is."""
    return not types or any(fnmatchcase(each.__name__, name) for each in kind.__mro__ for name in types)


def module_types_of(model: nn.Module) -> list[str]:
    """The names of the classes of a model's modules, for a hint."""
    return sorted({each.__name__ for module in model.modules() for each in type(module).__mro__ if each is not object})
