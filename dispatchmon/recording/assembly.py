"""One stretch of recording: how the rooms are joined, from entering a monitor to leaving it."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from dispatchmon.attribution.nodes import BackwardNodes
from dispatchmon.attribution.sources import Sources
from dispatchmon.hazards.findings import Hazards
from dispatchmon.hazards.histories import Histories
from dispatchmon.hazards.makers import Makers
from dispatchmon.hazards.overwrites import Overwrites
from dispatchmon.hazards.refusals import Refusals
from dispatchmon.hazards.refused_reads import explain
from dispatchmon.hazards.saved_values import SavedValues
from dispatchmon.module_tracker import ModuleTracker
from dispatchmon.observing.alerts import Alerts
from dispatchmon.observing.event_writer import EventWriter
from dispatchmon.observing.module_values import ModuleValues
from dispatchmon.observing.on_nonfinite import Harm, Moments
from dispatchmon.observing.parameter_values import ParameterValues
from dispatchmon.operators.plans import Plans
from dispatchmon.packed.events import EventBuffer
from dispatchmon.packed.records import UNREADY
from dispatchmon.packed.tables import Tables
from dispatchmon.recording import handover
from dispatchmon.recording.alarm import Alarm
from dispatchmon.recording.dispatch import RecordingMode
from dispatchmon.recording.handover import Handover
from dispatchmon.recording.metadata import metadata
from dispatchmon.recording.switch import Switch
from dispatchmon.recording.verdict import first_origins, judged, said_of_nonfinite
from dispatchmon.schema import PHASES
from dispatchmon.settings import Settings
from dispatchmon.sink import Sink
from dispatchmon.statistics.table import Statistics
from dispatchmon.torch_internals import DisableTorchFunction
from dispatchmon.values.names import ParameterNames, owned_by
from dispatchmon.values.refills import unwatch, watch
from dispatchmon.values.values import Values
from dispatchmon.words.closing_line import closing_line
from dispatchmon.words.harmless import printable_lines
from dispatchmon.writing.converter import Converter
from dispatchmon.writing.flight_recorder import FlightRecorder
from dispatchmon.writing.tally import REASONS
from dispatchmon.writing.writer import TraceWriter


class Recording:
    """
    One stretch from entering a monitor to leaving it.

    Args:
        settings: what to record.
        model: whose names are used.
        path: the file to write.
        rank, world_size: of this process.
        level: how many monitors are open already.
        failed: called with what stops the recording.
    """

    def __init__(
        self,
        settings: Settings,
        model: nn.Module | None,
        path: Path,
        rank: int,
        world_size: int,
        level: int,
        failed: Callable[[BaseException], None],
    ) -> None:
        self.settings, self.model, self.path, self.on_failure = settings, model, path, failed
        self.pid = os.getpid()
        self.start = perf_counter_ns()
        self.warned = False
        self.stance: Any = None  # of torch.compile
        self.dispatches = "ops" in settings.record
        # What is packed, and what the integers stand for.
        self.buffer, self.tables = EventBuffer(), Tables()
        self.buffer.flush = self.flush
        self.statistics = Statistics(handover.BATCH_SLOTS) if settings.stats else None
        self.values = Values(self.tables, self.statistics, level, settings.verify_values)
        self.names = ParameterNames(self.values)
        self.plans = Plans(self.tables.operators, self.tables.arguments, self.tables.literals, settings.ops)
        # Where it belongs.
        self.tracker = ModuleTracker(model, self.tables, settings.modules)
        self.tracker.steps.over = self.step_begins
        self.tracker.steps.optimizer_runs = self.optimizer_runs
        self.tracker.compiled.unseen_writes = self.values.new_epoch
        self.sources = Sources(self.tables.sources) if settings.source else None
        if self.sources is not None:
            self.tracker.caller_of = self.sources.caller
            self.tracker.steps.line_of = self.sources.line_of_step
        self.nodes = BackwardNodes(self.values, self.tracker.threads)
        # What its writes do to others.
        self.hazards = Hazards(self.tables, self.values, self.sources, settings.on_hazard)
        self.makers = Makers(self.values, self.tracker, self.plans)
        self.saved = SavedValues(self.values, self.tracker, self.hazards, self.makers)
        histories = Histories(self.values.labels, {} if model is None else owned_by(model))
        self.overwrites = Overwrites(self.values, self.tracker, self.hazards, histories)
        self.refusals = Refusals(self.hazards, self.tracker, self.plans)
        self.audited = len(settings.phases) == len(PHASES) and self.dispatches  # else it would not see every write
        self.tracker.judge = self.overwrites if self.audited else None
        # The hot path, and the way to the file.
        self.mode = RecordingMode(
            self.buffer, self.plans, self.values, self.tracker, self.nodes, self.sources, frozenset(settings.phases),
            self.saved, self.overwrites, self.refusals, self.failed,
        )  # fmt: skip
        self.handover = Handover(
            self.buffer, self.values, self.statistics, self.tables, self.hazards, self.plans, self.sources
        )
        about, keep_last = self.about(rank, world_size), settings.keep_last
        self.sink = Sink(
            TraceWriter(path, about)
            if keep_last is None
            else FlightRecorder(path, about, keep_last, first_origins if self.dispatches else None),
            Converter(rank, self.start, settings.stats),
            self.handover.copy,
            handover.BATCH_NS / 1e9,
            settings.max_bytes,
        )
        self.switch = Switch(
            settings, self.mode, self.buffer, self.values, self.tracker, self.makers, lambda: self.sink.over
        )
        self.left_by: BaseException | None = None  # the exception that ended the block
        self.alarm: Alarm | None = None
        self.moments: Moments | None = None
        if settings.on_nonfinite != "record" and self.statistics is not None:
            self.alarm = Alarm(settings.on_nonfinite == "raise", path, self.sink, self.all_handed_over)
            if self.dispatches:  # only operators can be followed
                self.moments = self.mode.moments = Moments(self.statistics, self.values)
                self.mode.look_into = self.alarm.look_into
        if settings.training is not None:
            self.tracker.watches_training = True
            self.tracker.training_is = self.switch.training
            self.switch.right_mode = model is None or model.training == settings.training
        self.observe()

    def observe(self) -> None:
        """What is to be recorded besides operators."""
        settings, alerts = self.settings, None
        on_nonfinite = "record" if self.dispatches else settings.on_nonfinite  # else the operator is watched for
        if settings.rules or on_nonfinite != "record":
            alerts = Alerts(settings.rules, on_nonfinite)
            alerts.borders.outermost = lambda: len(self.tracker.stack) == 1
        self.writer = EventWriter(self.buffer, self.values, self.tables, alerts, self.dispatches)
        self.modules: ModuleValues | None = None
        self.parameters: ParameterValues | None = None
        sources = self.sources

        def line() -> int:
            return 0 if sources is None else sources.line(sys._getframe(1))

        types, phases = settings.module_types, settings.phases
        if "modules" in settings.record:
            self.modules = ModuleValues(self.writer, self.tracker, self.nodes, settings.modules, types, phases, line)
            self.tracker.observer = self.modules
        if "parameters" in settings.record:
            self.parameters = ParameterValues(
                self.writer, self.tracker, self.names.places, self.names.name_of, types, phases, settings.update_bytes, line
            )  # fmt: skip

    def about(self, rank: int, world_size: int) -> dict[str, Any]:
        """The metadata of the trace."""
        return metadata(self.model, rank, world_size) | {
            "settings": self.settings.described(),
            "statistics_backend": None if self.statistics is None else self.statistics.backend,
            "flush": {"rows": handover.BATCH_ROWS, "seconds": handover.BATCH_NS / 1e9},
        }

    # ------------------------------------------------------------------------------------------------- open, close
    def open(self) -> None:
        """Begin."""
        self.sink.open()
        if self.settings.compiled == "eager":
            self.stance = torch.compiler.set_stance("force_eager")
        self.tracker.open()
        if self.settings.verify_values:
            watch(self.values.refilled)
        if self.parameters is not None:
            self.parameters.open()
        self.handover.begin()
        self.buffer.idle = True  # until the first step is asked for
        if self.model is not None:
            self.names.learn(self.model)
        self.model = None  # a model that is dropped in the block dies there
        self.step_begins(0)
        self.complain()

    def explain(self, error: BaseException | None) -> None:
        """The block ends: what autograd raised, and what a model did to its arguments."""
        self.left_by = error
        if os.getpid() != self.pid or not self.audited:
            return
        with DisableTorchFunction():
            self.hazards.action = "warn" if self.hazards.action != "record" and error is None else "record"
            self.overwrites.judge_arguments()
            self.hazards.action = "record"
            self.refusals.explain(error, self.buffer.next_number)
            if error is not None:
                explain(error, self.saved)

    def close(self, reason: str | None, quiet: bool) -> None:
        """Take everything off again, also after an exception, and close the file; say so on stderr unless `quiet`."""
        if os.getpid() != self.pid:
            return
        self.switch.close()
        if self.stance is not None:
            self.stance.__exit__(None, None, None)
        self.tracker.close()
        unwatch(self.values.refilled)
        if self.modules is not None:
            self.modules.new_step()
        if self.parameters is not None:
            self.parameters.close()
        self.settled()
        self.hand_over()
        self.values.untag()
        step = self.tracker.steps.number
        self.sink.close({"reason": reason, "step": step, "skipped": self.skipped(), "monitor_ns": self.buffer.own_ns})
        self.complain()
        if self.sink.error is None:
            self.conclude(reason, quiet)

    def conclude(self, reason: str | None, quiet: bool) -> None:
        """The closing line, and what `on_nonfinite` says of the whole trace."""
        sink, record, alarm = self.sink, self.settings.record, self.alarm
        n_bytes = self.path.stat().st_size if self.path.exists() else 0
        tally = sink.converter.tally
        first, unwritten = tally.first_nonfinite, REASONS[UNREADY] in tally.skipped
        asked = self.dispatches and (first is not None or unwritten) and not (quiet and alarm is None)
        answer = judged(self.path, n_bytes) if asked else None
        if not quiet:
            said, alarming = said_of_nonfinite(first, self.dispatches, answer)
            line = closing_line(
                self.path, n_bytes, sink.closed, said, alarming, sink.stopped, self.dispatches, record == ("ops",)
            )
            print(printable_lines(line), file=sys.stderr)
        if alarm is not None and reason is None:
            alarm.at_end(answer)
            if self.writer.alerts is not None:
                self.writer.alerts.at_end()
        elif alarm is not None and asked and isinstance(self.left_by, Exception):
            alarm.at_exception()

    def abandon(self) -> None:
        """A forked child (a DataLoader's worker) records nothing and never touches its parent's file."""
        self.buffer.idle = True
        self.tracker.close()
        unwatch(self.values.refilled)

    def skipped(self) -> dict[str, int]:
        """What ran and was not recorded, by reason."""
        compiled, switch = self.tracker.compiled, self.switch
        reasons = {
            "calls of compiled modules, whose fused operators cannot be seen": compiled.calls,
            "entries into other code of torch.compile, whose fused operators cannot be seen": compiled.entries,
            "module calls in other threads, whose operators are not recorded": self.tracker.threads.calls,
            "steps that were not asked for": switch.steps_left_out,
            "calls of the model in the mode that was not asked for": switch.calls_left_out,
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
        return {reason: n for reason, n in reasons.items() if n} | self.saved.savings.unknown

    def failed(self, error: Exception) -> None:
        """A fault of ours while looking at an operator: recording stops with a warning, the loop goes on."""
        self.sink.error = self.sink.error or error
        self.complain()

    def complain(self) -> None:
        """One warning when the trace cannot be written; training goes on."""
        if self.sink.over:
            self.buffer.idle = True
        if (error := self.sink.error) is not None and not self.warned:
            self.warned = True
            self.on_failure(error)
            disk = isinstance(error, OSError)
            cause = f"cannot be written: {error}" if disk else f"was given up after an error: {error!r}"
            text = printable_lines(f"dispatchmon stopped recording: {self.path} {cause}")
            warnings.warn(text, RuntimeWarning, stacklevel=4)

    # ------------------------------------------------------------------------------------------------- batches
    def flush(self) -> None:
        """Hand what was recorded to the sink."""
        harm = self.settled()
        self.hand_over()
        self.look_into(harm)

    def hand_over(self) -> None:
        """The same, whatever was found on a device."""
        if (batch := self.handover.take()) is not None:
            self.sink.put(batch)
        self.complain()

    def all_handed_over(self) -> int:
        """Hand everything over; how many batches there were."""
        self.settled()
        self.hand_over()
        return self.handover.number

    def settled(self) -> Harm | None:
        """Fetch the statistics that are on a device; whether something there is not finite that matters."""
        if self.statistics is None or not (self.statistics.waiting or self.statistics.spoiled):
            return None
        self.statistics.settle()
        return None if self.moments is None else self.moments.spoiled(self.values.rows)

    def look_into(self, harm: Harm | None) -> None:
        """Find out whether a moment is one of harm, and say so if that was asked for."""
        if harm is not None and self.alarm is not None:
            self.alarm.look_into(harm)

    # ------------------------------------------------------------------------------------------------- steps
    def step_begins(self, step: int) -> None:
        """The step before is over."""
        if (harm := self.settled()) is not None:
            self.look_into(harm)
        if self.writer.alerts is not None:
            self.writer.alerts.borders.new_step()
        if self.modules is not None:
            self.modules.new_step()
        self.switch.step(step)

    def optimizer_runs(self, optimizer: Optimizer, after: bool) -> None:
        """Name gradients before an optimizer steps, and its new states after."""
        harm = None
        if not self.buffer.idle:
            with DisableTorchFunction():
                self.names.after_step(optimizer) if after else self.names.before_step(optimizer)
                if (moments := self.moments) is not None:
                    closure = self.tracker.steps.has_closure
                    harm = moments.after_optimizer(optimizer) if after else moments.before_optimizer(optimizer, closure)
        if (alerts := self.writer.alerts) is not None and not (after or self.tracker.steps.has_closure):
            alerts.before_optimizer(optimizer)
        if self.parameters is not None:
            self.parameters.after(optimizer) if after else self.parameters.arm(optimizer)
        if harm is not None:
            self.look_into(harm)
