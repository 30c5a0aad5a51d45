"""
The dispatch mode that sees every operator: the hot path.

What happens per operator is in `RecordingMode.__torch_dispatch__`: look up the plan, add a row for each tensor that goes
in, run the operator, add a row for each tensor that was written or came out, add the event.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from threading import get_ident
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dispatchmon.attribution.nodes import BackwardNodes
from dispatchmon.attribution.sources import Sources
from dispatchmon.errors import DispatchmonError, HazardError
from dispatchmon.hazards.frames import application, in_function
from dispatchmon.hazards.overwrites import Overwrites
from dispatchmon.hazards.refusals import Refusals
from dispatchmon.hazards.saved_values import SavedValues
from dispatchmon.module_tracker import ModuleTracker
from dispatchmon.observing.on_nonfinite import Harm, Moments
from dispatchmon.operators.effects import COMPARES
from dispatchmon.operators.operands import operand, tensors_in
from dispatchmon.operators.plan import (
    COMPOSITE,
    FACTORY,
    FLAGGED,
    HIGHER_ORDER,
    KEYED,
    LEAVES_SCRATCH,
    MAY_LIE,
    NO_OPERATOR,
    UNCOUNTED,
    WAIT,
    Plan,
)
from dispatchmon.operators.plans import Plans
from dispatchmon.operators.schemas import SCRATCH_RESULTS
from dispatchmon.packed.events import EventBuffer
from dispatchmon.packed.records import (
    ACCUMULATE,
    EVENT,
    FOREIGN,
    LIVE,
    OWN,
    PASSED_ON,
    RAISED,
    RECOMPUTED,
    Pending,
)
from dispatchmon.recording.lies import Lies, versions_of
from dispatchmon.torch_internals import (
    ENGINE_CODE,
    call_composite,
    distributed,
    gathered_by_fsdp,
    graph_task,
    is_opaque,
    keys_of_the_caller,
    never_compile,
    next_sequence_number,
    only_for_its_shape,
    running_node,
    version_counters_moving,
)
from dispatchmon.values.tags import HISTORY, WRITES
from dispatchmon.values.values import Values

pack_event = EVENT.pack
# What the operator must find as it is without a mode.
GUARDS: dict[int, Any] = {
    UNCOUNTED: version_counters_moving,
    MAY_LIE: version_counters_moving,
    KEYED: keys_of_the_caller,
}
frame_of = sys._getframe


class RecordingMode(TorchDispatchMode):
    """
    Packs what every operator saw and made: rows by `values`, events into `buffer`.

    What is called for every operator is bound here or written out below, for a call or an attribute costs there.
    """

    supports_higher_order_operators = True

    def __init__(
        self,
        buffer: EventBuffer,
        plans: Plans,
        values: Values,
        tracker: ModuleTracker,
        nodes: BackwardNodes,
        sources: Sources | None,
        phases: frozenset[str],
        saved: SavedValues,
        overwrites: Overwrites,
        refusals: Refusals,
        failed: Callable[[Exception], None],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.buffer, self.next_event = buffer, buffer.next_number
        self.plans, self.values, self.sources = plans, values, sources
        self.tracker, self.contexts, self.steps = tracker, tracker.contexts, tracker.steps
        self.nodes, self.backward_node = nodes, nodes.number
        self.saved, self.makers, self.overwrites, self.refusals = saved, saved.makers, overwrites, refusals
        self.lies = Lies(plans, values, tracker, saved)
        self.filtered = tracker.names.filtered or "*" not in plans.ops
        self.phases = phases if len(phases) < 4 else None
        self.hazard: HazardError | None = None  # to be raised when the event is complete
        self.failed = failed  # called with an error of our own, which ends the recording
        self.left_out = 0  # operators of phases that were not asked for
        self.moments: Moments | None = None  # at which NaN and Inf do harm; None: they are only recorded
        self.look_into: Callable[[Harm | None], None] = lambda harm: None

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled regions stay compiled; what runs inside them is not seen."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether torch shall wrap the handler; `never_compile` below does the same without its cost per operator."""
        return False

    # ------------------------------------------------------------------------------------------------- every operator
    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        buffer = self.buffer
        if buffer.idle:
            return self.passed_through(func, args, kwargs or {})
        entered = perf_counter_ns()
        plan = self.plans[func]
        if plan.special or types or self.phases is not None:
            return self.unusual(plan, func, types, args, kwargs or {})
        try:
            pending = self.before(plan, args, kwargs, frame_of(1))
        except DispatchmonError:  # on_hazard
            raise
        except Exception as error:  # a fault of ours must not reach the training loop
            self.give_up(error)
            return func(*args, **kwargs) if kwargs else func(*args)
        start = perf_counter_ns()
        try:
            result = func(*args, **kwargs) if kwargs else func(*args)
        except BaseException as error:
            self.raised(plan, pending, start, args, kwargs, error)
            raise
        duration = perf_counter_ns() - start
        try:
            self.after(plan, pending, args, kwargs, result, start, duration)
        except DispatchmonError:  # on_nonfinite, on_hazard
            raise
        except Exception as error:
            self.give_up(error)
        buffer.own_ns += perf_counter_ns() - entered - duration
        return result

    def give_up(self, error: Exception) -> None:
        """Record nothing more: something of ours went wrong."""
        self.buffer.idle = True
        self.failed(error)

    def before(self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any] | None, frame: Any) -> Pending:
        """Rows of the tensors that go in; what else is known before the operator runs."""
        values, contexts, steps = self.values, self.contexts, self.steps
        event = self.next_event()
        number = next_sequence_number()
        context = contexts.current
        task = graph_task()
        if task != -1:
            running = running_node()
            node = self.backward_node(running)
            if get_ident() != steps.thread:  # a device's thread, which counts for itself
                number = -1
        else:
            node = LIVE
            if steps.optimizing:
                context = self.tracker.context_in_optimizer(frame)
        source, sources = 0, self.sources
        if sources is not None:
            if task != -1 and frame.f_code is not ENGINE_CODE:
                source = sources.line_in_backward(frame)
            else:
                known = steps.line if node == LIVE and sources.libraries[frame.f_code.co_filename] else 0
                source = known or sources.line(frame)
        if number > self.makers.newest:
            if torch.is_grad_enabled():
                self.makers.node_made(number, event, plan, source)
            else:
                self.function_applied(number, event, plan, frame)
        if self.filtered:
            values.measuring = values.statistics is not None and plan.measured and (
                contexts.measured_at(node) if node >= 0 else contexts.measured)  # fmt: skip
        scalars: tuple[Any, ...] = ()  # argument number, value, ...: numbers in the place of tensors
        see = values.see
        for tensor, argument in zip(args, plan.by_position):  # noqa: B905 - defaults are left out of args
            if argument is not None:
                if isinstance(tensor, Tensor):
                    see(tensor, argument, event)
                elif isinstance(tensor, (list, tuple)):
                    values.see_all(tensor, argument, event)
                elif tensor is not None:
                    scalars = (*scalars, argument, tensor)
        if kwargs:
            by_name = plan.by_name
            for name, tensor in kwargs.items():
                if isinstance(tensor, Tensor):
                    see(tensor, by_name[name], event)
                elif isinstance(tensor, (list, tuple)) and by_name[name] is not None:
                    values.see_all(tensor, by_name[name], event)
        arguments = plan.arguments.number(args, kwargs, scalars) if plan.others or scalars else 0
        pending = event, arguments, context, number, node, source
        if node == LIVE:
            if values.touched:
                values.touched = False
                if not steps.optimizing:
                    self.judge(plan, pending, self.overwrites.reads, plan, event, source, args, kwargs)
        elif node >= 0:
            saved = self.saved
            if node < saved.newest_write and (node != saved.node or task != saved.task):
                self.judge(plan, pending, saved.node_runs, task, node, running, plan, pending, args)
        elif FOREIGN < node <= RECOMPUTED:
            self.judge(plan, pending, self.saved.recomputes, running, pending, plan, args)
        return pending

    def function_applied(self, number: int, event: int, plan: Plan, frame: Any) -> None:
        """A node was made without gradients: an autograd.Function is applied, and this is its first operator."""
        applied = application(frame)
        source = 0 if applied is None or self.sources is None else self.sources.line(applied)
        self.makers.node_made(number, event, plan, source, function=applied is not None)

    def judge(self, plan: Plan, pending: Pending, judge: Any, *evidence: Any) -> None:
        """What an operator shows of earlier writes; with `on_hazard="raise"` it does not run."""
        try:
            judge(*evidence)
        except HazardError:
            self.ended(plan, pending, perf_counter_ns(), RAISED)
            raise

    def after(
        self,
        plan: Plan,
        pending: Pending,
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None,
        result: Any,
        start: int,
        duration: int,
    ) -> None:
        """Rows of the tensors that were written and that came out; the event."""
        values, event = self.values, pending[0]
        see = values.see
        if plan.unready:
            asked = values.measuring, values.reason
            values.measuring, values.reason = False, plan.unready
        if plan.writes:
            self.writes(plan, pending, args, kwargs)
        node = pending[4]
        if RECOMPUTED < node <= ACCUMULATE:
            self.name_gradient(result, ACCUMULATE - node)
        outputs = plan.outputs
        if isinstance(result, Tensor):
            if outputs[0] is not None:
                see(result, outputs[0], event)
        elif result is not None:
            for tensor, argument in zip(result if len(outputs) > 1 else (result,), outputs):  # noqa: B905
                if argument is not None:
                    if isinstance(tensor, Tensor):
                        see(tensor, argument, event)
                    elif isinstance(tensor, (list, tuple)):
                        values.see_all(tensor, argument, event)
        if plan.unready:
            values.measuring, values.reason = asked
        moments, harm = self.moments, None
        if moments is not None and moments.statistics.nonfinite and not self.buffer.nested:
            harm = moments.operator(values.rows, plan, pending, self.steps.optimizing)
        self.ended(plan, pending, start, duration)
        if plan.notable and node == LIVE and (not self.steps.optimizing or plan.effects & COMPARES):
            self.overwrites.made(plan, pending, result, args, frame_of(2))
        if plan.writes and self.hazard is not None:
            hazard, self.hazard = self.hazard, None
            raise hazard
        if harm is not None:
            self.look_into(harm)

    def writes(self, plan: Plan, pending: Pending, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> None:
        """Rows of what was written, and the log of writes."""
        event, _, _, number, node, _ = pending
        values, saved, optimizing = self.values, self.saved, self.steps.optimizing
        if not optimizing and distributed() and gathered_by_fsdp(frame_of(1)):
            self.unlogged_writes(plan, event, args, kwargs or {})
            return
        forward = node == LIVE and not optimizing
        function = forward and not torch.is_grad_enabled() and in_function()
        write = pending, plan, self.tracker.path, number - 1 if function else -1
        written: list[tuple[Tensor, list[Any]]] = []  # what is to be judged
        for position, name, argument in plan.writes:
            tensor = args[position] if position < len(args) else kwargs.get(name) if kwargs else None
            if isinstance(tensor, Tensor):
                tag = values.wrote(tensor, argument, event, write)
                if tag is not None and (
                    forward or tag[HISTORY] is not None or (tensor.requires_grad and len(tag[WRITES]) == 1)
                ):
                    written.append((tensor, tag))
            elif tensor is not None:
                values.wrote_all(tensor, argument, event, write, forward, written)
        if number > saved.newest_write or number < 0:
            saved.wrote(number)
        if pending[5] >= OWN:
            saved.wrote_in_backward(running_node())
        if written and self.phases is None:
            if forward:
                self.makers.wrote(write, written, args)
            try:
                self.overwrites.wrote(write, written, args, forward, function)
            except HazardError as hazard:
                self.hazard = hazard

    def unlogged_writes(self, plan: Plan, event: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Rows of writes that give memory the value it had before."""
        for position, name, argument in plan.writes:
            tensor = operand(args, kwargs, position, name)
            self.values.written_all((tensor,))
            if isinstance(tensor, Tensor):
                self.values.see(tensor, argument, event)
            elif tensor is not None:
                self.values.see_all(tensor, argument, event)

    def raised(self, plan: Plan, pending: Pending, start: int, args: Any, kwargs: Any, error: BaseException) -> None:
        """An operator raised: if it could not write, that is a finding."""
        self.ended(plan, pending, start, RAISED)
        if plan.writes:
            position, name, _ = plan.writes[0]
            target = next(tensors_in((operand(args, kwargs, position, name),)), None)
            if target is not None:
                self.refusals.by_kernel(plan, pending, target, error)

    def ended(self, plan: Plan, pending: Pending, start: int, duration: int) -> None:
        """The event itself."""
        event, arguments, context, number, node, source = pending
        buffer = self.buffer
        buffer.add(pack_event(event, plan.operator, arguments, context, number, node, source, start, duration))
        if (len(self.values.rows) > buffer.full or start > buffer.deadline) and not buffer.nested:
            buffer.flush()

    def name_gradient(self, result: Any, label: int) -> None:
        """The result of an operator of AccumulateGrad is what becomes a parameter's `.grad`."""
        names = self.values.labels.items[label][1]
        if names and isinstance(result, Tensor):
            self.values.name(result, names[-1][2] + ".grad")

    # ------------------------------------------------------------------------------------------------- the longer road
    def unusual(self, plan: Plan, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Operators and tensors that need more than a look before and after."""
        frame = frame_of(2)
        if plan.special == NO_OPERATOR:
            return func(*args, **kwargs)
        if (types or plan.special == FACTORY) and only_for_its_shape(frame):
            return func(*args, **kwargs)
        if plan.special == COMPOSITE and torch.is_inference_mode_enabled():
            with self:
                return call_composite(func, args, kwargs)
        if plan.special == FLAGGED:
            plan = self.plans.flagged(func, args, kwargs)
        if self.phases is not None and self.nodes.phase(bool(self.steps.optimizing)) not in self.phases:
            return self.unrecorded(plan, func, args, kwargs)
        if any(is_opaque(kind) for kind in types):
            return self.pass_on(plan, func, args, kwargs, frame)
        guard = GUARDS.get(plan.special, nullcontext)
        seen, named = ((tree_leaves((args, kwargs)),), None) if plan.special == HIGHER_ORDER else (args, kwargs)
        try:
            pending = self.before(plan, seen, named, frame)
            versions = versions_of(args, kwargs) if plan.special == MAY_LIE else None
        except DispatchmonError:
            raise
        except Exception as error:  # a fault of ours
            self.give_up(error)
            with guard():
                return func(*args, **kwargs)
        self.buffer.nested += 1
        start = perf_counter_ns()
        try:
            with guard():
                result = func(*args, **kwargs)
        except BaseException as error:
            self.buffer.nested -= 1
            self.raised(plan, pending, start, args, kwargs, error)
            raise
        duration = perf_counter_ns() - start
        self.buffer.nested -= 1
        try:
            if plan.special == WAIT:
                self.values.arrived(args[0])
            if plan.special == LEAVES_SCRATCH:
                for place in SCRATCH_RESULTS[func._schema.name]:
                    self.values.is_scratch(result[place])
            if versions is not None:
                plan = self.lies.found(plan, func, versions, pending)
            made = (tree_leaves(result),) if plan.special == HIGHER_ORDER else result
            self.after(plan, pending, seen, named, made, start, duration)
        except DispatchmonError:
            raise
        except Exception as error:
            self.give_up(error)
        return result

    def pass_on(self, plan: Plan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: Any) -> Any:
        """A tensor subclass handles the operator itself: the event is recorded here, its own operators follow."""
        pending = self.before(plan, args, kwargs, frame)
        self.ended(plan, pending, perf_counter_ns(), PASSED_ON)
        return NotImplemented

    def passed_through(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operator while nothing is recorded, where the mode could not be taken off the stack: it runs as without one."""
        special = self.plans[func].special
        if special == COMPOSITE and torch.is_inference_mode_enabled():
            with self:
                return call_composite(func, args, kwargs)
        with GUARDS.get(special, nullcontext)():
            return func(*args, **kwargs)

    def unrecorded(self, plan: Plan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operator of a phase that was not asked for: it leaves no row, but its writes count."""
        self.left_out += 1
        with GUARDS.get(plan.special, nullcontext)():
            result = func(*args, **kwargs)
        for position, name, _ in plan.writes:
            self.values.written_all((operand(args, kwargs, position, name),))
        return result


never_compile(RecordingMode.__torch_dispatch__)
