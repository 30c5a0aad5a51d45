"""One stretch of recording: how the rooms of the library are joined, from entering a monitor to leaving it."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from dispatchmon.attribution.sources import Sources
from dispatchmon.hazards.borders import Borders
from dispatchmon.hazards.findings import Hazards
from dispatchmon.hazards.refusals import explain_refusal
from dispatchmon.hazards.saved_values import ALWAYS, MODIFIED, SavedValues
from dispatchmon.module_tracker import ModuleTracker
from dispatchmon.observing.alerts import Alerts
from dispatchmon.observing.event_writer import EventWriter
from dispatchmon.observing.module_values import ModuleValues
from dispatchmon.observing.on_nonfinite import Spoiled, Watch, wait_for
from dispatchmon.observing.parameter_values import ParameterValues
from dispatchmon.operators.plans import Plans
from dispatchmon.packed.records import ROW
from dispatchmon.packed.tables import Tables
from dispatchmon.recording.dispatch import RecordingMode
from dispatchmon.recording.handover import Handover
from dispatchmon.recording.metadata import metadata
from dispatchmon.schema import PHASES
from dispatchmon.sink import Sink
from dispatchmon.statistics.table import Statistics
from dispatchmon.torch_internals import (
    DisableTorchFunction,
    current_dispatch_mode,
    take_higher_order_operators,
    take_off_stack,
)
from dispatchmon.values.names import ParameterNames, owned_by
from dispatchmon.values.values import Values
from dispatchmon.words.closing_line import closing_line
from dispatchmon.writing.converter import Converter
from dispatchmon.writing.flight_recorder import FlightRecorder
from dispatchmon.writing.writer import TraceWriter

if TYPE_CHECKING:
    from dispatchmon.mode import DispatchMonitor

BATCH_ROWS = 1 << 15
BATCH_SLOTS = BATCH_ROWS + (1 << 14)  # one operator can see many tensors, and a batch ends only between operators
BATCH_NS = 5_000_000_000  # a batch is handed over after this time, full or not


class Recording:
    """One stretch from entering a monitor to leaving it."""

    def __init__(
        self, monitor: DispatchMonitor, model: nn.Module | None, path: Path, rank: int, world_size: int, level: int
    ) -> None:
        settings = monitor.settings
        self.monitor, self.settings, self.model, self.path = monitor, settings, model, path
        self.pid = os.getpid()
        self.start = perf_counter_ns()
        self.tables = Tables()
        self.statistics = Statistics(BATCH_SLOTS) if settings.stats else None
        self.values = Values(self.tables, self.statistics, level, settings.verify_values)
        self.tracker = ModuleTracker(model, self.tables, settings.modules)
        self.tracker.step_ends = self.step_ended
        self.tracker.parameters_step = self.optimizer_runs
        self.tracker.unseen_writes = self.values.new_epoch
        self.sources = Sources(self.tables.sources) if settings.source else None
        if self.sources is not None:
            self.tracker.caller_of = self.sources.caller
            self.tracker.line_of_step = self.sources.line_of_step
        if settings.training is not None:
            self.tracker.watches_training = True
            self.tracker.training_is = self.training_is
        self.right_mode = settings.training is None or model is None or model.training == settings.training
        self.plans = Plans(self.tables.operators, self.tables.arguments, self.tables.literals, settings.ops)
        self.hazards = Hazards(self.tables, self.values, self.sources, settings.on_hazard)
        self.saved = SavedValues(self.values, self.tracker, self.hazards, self.plans)
        self.borders = Borders(self.values, self.tracker, self.hazards, {} if model is None else owned_by(model))
        audited = len(settings.phases) == len(PHASES) and "ops" in settings.record  # else it would not see every write
        self.tracker.borders = self.borders if audited else None
        self.mode = RecordingMode(
            self.plans, self.values, self.tracker, self.sources, frozenset(settings.phases), self.flush,
            self.saved, self.borders,
        )  # fmt: skip
        self.mode.full = BATCH_ROWS * ROW.size
        self.mode.failed = self.failed
        if settings.on_nonfinite != "record" and self.statistics is not None:  # it is asked only by operators
            self.mode.watch = Watch(self.statistics, self.plans, settings.on_nonfinite == "raise", self.catch_up)
        self.pushed = False
        self.end_higher_order: Any = None
        self.pauses = 0
        self.right_step = True
        self.calls_left_out = 0  # of the model, in the other of training and evaluation mode
        self.names = ParameterNames(self.values)
        self.warned = False
        self.observe(tuple(settings.record))
        self.stance: Any = None  # of torch.compile
        converter = Converter(rank, self.start, settings.stats)
        about, keep_last = self.about(rank, world_size), settings.keep_last
        self.handover = Handover(self.mode, self.values, self.statistics, self.tables, self.hazards)
        self.sink = Sink(
            TraceWriter(path, about) if keep_last is None else FlightRecorder(path, about, keep_last),
            converter,
            self.handover.copy,
            BATCH_NS / 1e9,
            settings.max_bytes,
        )

    def about(self, rank: int, world_size: int) -> dict[str, Any]:
        """The metadata of the trace."""
        return metadata(self.model, rank, world_size) | {
            "settings": self.settings.described(),
            "statistics_backend": None if self.statistics is None else self.statistics.backend,
            "flush": {"rows": BATCH_ROWS, "seconds": BATCH_NS / 1e9},
        }

    def observe(self, record: tuple[str, ...]) -> None:
        """What is to be recorded besides operators."""
        settings, alerts = self.settings, None
        self.dispatches = "ops" in record
        on_nonfinite = "record" if self.dispatches else settings.on_nonfinite  # else the operator is watched for
        if settings.rules or on_nonfinite != "record":
            alerts = Alerts(settings.rules, on_nonfinite)
        self.writer = EventWriter(self.mode, self.values, self.tables, alerts, self.dispatches)
        self.modules: ModuleValues | None = None
        self.parameters: ParameterValues | None = None
        sources = self.sources

        def line() -> int:
            return 0 if sources is None else sources.line(sys._getframe(1))

        types, phases = settings.module_types, settings.phases
        if "modules" in record:
            self.modules = ModuleValues(self.writer, self.tracker, settings.modules, types, phases, line)
            self.tracker.observer = self.modules
        if "parameters" in record:
            self.parameters = ParameterValues(
                self.writer, self.tracker, self.names.places, self.names.name_of, types, phases, settings.update_bytes, line
            )  # fmt: skip

    # ------------------------------------------------------------------------------------------------- open, close
    def open(self) -> None:
        self.sink.open()
        if self.settings.compiled == "eager":
            self.stance = torch.compiler.set_stance("force_eager")
        self.tracker.open()
        if self.parameters is not None:
            self.parameters.open()
        self.mode.deadline = self.start + BATCH_NS
        self.mode.idle = True  # until the first step is asked for
        if self.model is not None:
            self.names.learn(self.model)
        self.model = None  # a model that is dropped in the block dies there
        self.step_ended(0)
        self.complain()

    def explain(self, error: BaseException | None) -> None:
        """The block ends: what autograd raised, and what a model did to its arguments."""
        if os.getpid() != self.pid or self.tracker.borders is None:
            return
        with DisableTorchFunction():
            self.hazards.action = "warn" if self.hazards.action != "record" and error is None else "record"
            self.borders.judge_arguments()
            self.hazards.action = "record"
            if error is None:
                return
            explain_refusal(error, self)
            while error is not None and MODIFIED not in str(error):
                error = error.__cause__ or error.__context__
            if error is not None:
                self.saved.explain(error)

    def close(self, reason: str | None) -> None:
        """Take everything off again, also after an exception, and close the file."""
        if os.getpid() != self.pid:
            return
        self.pause()
        if self.pushed:
            take_off_stack(self.mode)
        if self.end_higher_order is not None:
            self.end_higher_order()
        if self.stance is not None:
            self.stance.__exit__(None, None, None)
        self.tracker.close()
        if self.modules is not None:
            self.modules.new_step()
        if self.parameters is not None:
            self.parameters.close()
        spoiled = self.settled()
        self.hand_over()
        self.values.untag()
        step = self.tracker.step
        self.sink.close({"reason": reason, "step": step, "skipped": self.skipped(), "monitor_ns": self.mode.own_ns})
        self.complain()
        self.monitor.error = self.sink.error
        if not self.monitor.quiet and self.sink.error is None:
            record, sink = self.settings.record, self.sink
            n_bytes = self.path.stat().st_size if self.path.exists() else 0
            first = sink.converter.tally.first_nonfinite
            line = closing_line(
                self.path, n_bytes, sink.closed, first, sink.stopped, self.dispatches, record == ("ops",)
            )
            print(line, file=sys.stderr)
        if spoiled is not None and reason is None:
            self.mode.watch.speak(spoiled)

    def skipped(self) -> dict[str, int]:
        """What ran and was not recorded, by reason."""
        reasons = {
            "calls of compiled modules, whose fused operators cannot be seen": self.tracker.compiled_calls,
            "entries into other code of torch.compile, whose fused operators cannot be seen": self.tracker.compiled_entries,
            "module calls in other threads, whose operators are not recorded": self.tracker.foreign_calls,
            "steps that were not asked for": self.tracker.steps_left_out,
            "calls of the model in the mode that was not asked for": self.calls_left_out,
            "operators of phases that were not asked for": self.mode.left_out,
            "module and parameter events of which something could not be recorded": self.writer.failures,
        }
        if (modules := self.modules) is not None:
            reasons |= {
                "gradients of inputs and outputs that could not be watched without changing them": modules.unwatched,
                "calls of modules that the model does not own": modules.unowned,
                "containers with more members than are looked at": modules.cut_short,
            }
        if self.parameters is not None and (updates := self.parameters.updates) is not None:
            reasons["updates of parameters that did not fit into update_bytes"] = updates.left_out
        return {reason: n for reason, n in reasons.items() if n} | self.saved.unknown

    def failed(self, error: Exception) -> None:
        """A fault of ours while looking at an operator: recording stops with a warning, the loop goes on."""
        self.sink.error = self.sink.error or error
        self.complain()

    def complain(self) -> None:
        """One warning when the trace cannot be written; training goes on."""
        if self.sink.over:
            self.mode.idle = True
        if (error := self.sink.error) is not None and not self.warned:
            self.warned = True
            self.monitor.error = error
            disk = isinstance(error, OSError)
            cause = f"cannot be written: {error}" if disk else f"was given up after an error: {error!r}"
            warnings.warn(f"dispatchmon stopped recording: {self.path} {cause}", RuntimeWarning, stacklevel=4)

    # ------------------------------------------------------------------------------------------------- batches
    def flush(self) -> None:
        """Hand what was recorded to the sink."""
        spoiled = self.settled()
        self.hand_over()
        if spoiled is not None:
            self.mode.watch.speak(spoiled)

    def hand_over(self) -> None:
        if (batch := self.handover.take()) is not None:
            self.sink.put(batch)
        if self.tables.literals.size - self.tables.literals.base > Tables.MOST:
            self.tables.literals.forget()
            self.plans.forget_arguments()
        if self.tables.geometries.size - self.tables.geometries.base > Tables.MOST:
            self.values.geometries.forget()
        if self.sources is not None and self.tables.sources.size - self.tables.sources.base > Tables.MOST:
            self.sources.forget()
        self.mode.deadline = perf_counter_ns() + BATCH_NS
        self.complain()

    def settled(self) -> Spoiled | None:
        """Fetch the statistics that are on a device; the first event, if any, that `on_nonfinite` is about."""
        if self.statistics is None or not (self.statistics.waiting or self.statistics.spoiled):
            return None
        self.statistics.settle()
        watch = self.mode.watch
        return None if watch is None else watch.look_back(self.values.rows, self.mode.events)

    def catch_up(self) -> tuple[Converter, bytes]:
        """Have all events so far converted; the converter, and the packed events that were not handed over before."""
        events = bytes(self.mode.events)
        self.flush()
        wait_for(lambda: self.sink.converter.number >= self.handover.number or self.sink.over)
        return self.sink.converter, events

    # ------------------------------------------------------------------------------------------------- steps
    def step_ended(self, step: int) -> None:
        if (spoiled := self.settled()) is not None:
            self.mode.watch.speak(spoiled)
        if self.modules is not None:
            self.modules.new_step()
        self.right_step = self.settings.wants_step(step)
        self.tracker.steps_left_out += not self.right_step
        self.resume_or_pause()

    def training_is(self, training: bool) -> None:
        self.right_mode = training == self.settings.training
        self.calls_left_out += not self.right_mode
        self.resume_or_pause()

    def resume_or_pause(self) -> None:
        if self.right_step and self.right_mode:
            if self.mode.idle:
                self.resume()
        elif not self.mode.idle:
            self.pause()

    def resume(self) -> None:
        """Record from here on. What happened in between was not seen: values met again are new versions."""
        if self.sink.over or os.getpid() != self.pid:
            return
        if self.pauses:
            self.values.new_epoch()
        self.mode.newest_node = self.saved.resume() if self.tracker.borders is not None else ALWAYS
        self.mode.idle = False
        self.tracker.resume()
        if not self.pushed and self.dispatches:
            self.end_higher_order = self.end_higher_order or take_higher_order_operators(RecordingMode)
            self.mode.__enter__()  # type: ignore[no-untyped-call]
            self.pushed = True

    def pause(self) -> None:
        """Run without the mode, or with one that passes everything on where another mode lies above it."""
        self.mode.idle = True
        self.tracker.pause()
        self.pauses += 1
        if self.pushed and current_dispatch_mode() is self.mode:
            self.mode.__exit__(None, None, None)
            self.pushed = False

    # ------------------------------------------------------------------------------------------------- names
    def optimizer_runs(self, optimizer: Optimizer, after: bool) -> None:
        """Name gradients before an optimizer steps, and its new states after."""
        if not self.mode.idle:
            with DisableTorchFunction():
                self.names.after_step(optimizer) if after else self.names.before_step(optimizer)
        if self.parameters is not None:
            self.parameters.after(optimizer) if after else self.parameters.arm(optimizer)
