"""`DispatchMonitor`: the context manager that records a training loop."""

from __future__ import annotations

import atexit
import os
import platform
import sys
import warnings
import weakref
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from time import perf_counter_ns
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from dispatchmon.alerts import Alerts, Rule
from dispatchmon.batches import Converter
from dispatchmon.blocked import explain_refusal
from dispatchmon.borders import Borders
from dispatchmon.dispatch import RecordingMode
from dispatchmon.errors import MonitorStateError, SettingError, TraceExistsError
from dispatchmon.event_writer import EventWriter
from dispatchmon.flight_recorder import FlightRecorder
from dispatchmon.handover import Handover
from dispatchmon.hazards import Hazards
from dispatchmon.module_tracker import ModuleTracker, wrap_while_needed
from dispatchmon.module_values import ModuleValues, module_types_of
from dispatchmon.operators import Plans
from dispatchmon.parameter_values import ParameterValues
from dispatchmon.records import ROW
from dispatchmon.saved_values import ALWAYS, MODIFIED, SavedValues
from dispatchmon.schema import FORMAT_VERSION, PHASES, STATISTICS
from dispatchmon.settings import Settings, StepPattern, checked
from dispatchmon.sink import Sink
from dispatchmon.sources import Sources
from dispatchmon.statistics import Statistics
from dispatchmon.tables import Tables
from dispatchmon.torch_internals import DisableTorchFunction, current_dispatch_mode, take_off_stack
from dispatchmon.values import Values
from dispatchmon.watch import Watch, wait_for
from dispatchmon.writer import TraceWriter

BATCH_ROWS = 1 << 15
BATCH_SLOTS = BATCH_ROWS + (1 << 14)  # one operator can see many tensors, and a batch ends only between operators
BATCH_NS = 5_000_000_000  # a batch is handed over after this time, full or not
OPEN: list[DispatchMonitor] = []


class DispatchMonitor:
    """
    Record every operator of the block: what went in before it ran, what came out, where it belongs.

        with DispatchMonitor(model, "trace.arrow") as monitor:
            for batch in loader:
                train_step(batch)

    Args:
        model: the module whose names are used. Without one, each outermost module that is called becomes a root.
        path: the trace to write; `trace.arrow`, `trace-2.arrow`, ... in the working folder by default. Under `torchrun`
            each rank writes its own file, `trace.rank0.arrow`, ...
        record: what to record, any of `"ops"`; `"modules"`, inputs, outputs and their gradients of each module call; and
            `"parameters"`, value, gradient, update and optimizer state of each parameter in each optimizer step. Without
            `"ops"` there is no dispatch mode, and it costs a few percent (`docs/monitoring.md`).
        stats: which statistics, of min, max, mean, std, norm, nan, inf, posinf, zero; none for structure only.
        steps: `"START:STOP:EVERY"`, or a function `step -> bool`; other steps run without the mode.
        modules: glob or globs of qualified names; operators: statistics are taken in these modules and those they call;
            modules: only these leave rows; parameters: those of these modules and of those inside them.
        module_types: class names, or globs of them, that a module's class or one it is made from must have to leave rows;
            `("ReLU", "*Norm*")`.
        ops: glob or globs of operators, as `"aten.addmm*"`; statistics are taken of these.
        phases: which of forward, backward, recompute, optimizer leave rows.
        training: True records only from calls of the model in training mode on, False only from those in evaluation
            mode on; by default both are recorded, and a column tells them apart.
        source: record the user's line.
        compiled: `"keep"` runs compiled regions compiled and counts what they hide; `"eager"` runs them operator by
            operator, so that every one is seen.
        on_hazard: what to do when a write is found to have taken a value that somebody needed: `"record"` it, `"warn"`
            as well, or `"raise"` a `HazardError`.
        verify_values: digest each value when it is made and when it is used, to find writes that no operator declares
            (numpy, ctypes, a custom operator that lies); reads every value twice.
        on_nonfinite: what to do at the first operator that makes a NaN or Inf out of finite values, or a NaN out of Inf:
            `"record"` it, `"warn"` once, or `"raise"` a `NonFiniteError`; both name the operator and its line. Without
            `"ops"` it is the first NaN or Inf in what is recorded of modules and parameters.
        rules: conditions on modules and parameters to be checked while training; see `Rule`.
        update_bytes: memory for copies of parameters during an optimizer's step, from which updates are measured; what does
            not fit is measured in turn, a part each step. 0: no updates.
        keep_last: keep only so many recorded steps, the last ones, and those up to the first NaN and the first Inf.
        max_bytes: stop recording before the trace is larger than this, give or take one batch.
        overwrite: replace a trace that exists.
        quiet: no closing line on stderr.

    Raises:
        SettingError: an argument cannot be meant.
        TraceExistsError: on entering, when `path` exists and `overwrite` is False.
        MonitorStateError: on entering a monitor that is open already.
        NonFiniteError, AlertError: in the block, if `on_nonfinite` is `"raise"`, or a rule asks for it.

    Nothing else that goes wrong while recording reaches the training loop: recording stops with one warning, and `error`
    holds the exception. Not thread-safe: it records the thread that entered it, and the backward passes it starts.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        path: str | os.PathLike[str] | None = None,
        *,
        record: Iterable[str] = ("ops",),
        stats: Iterable[str] = STATISTICS,
        steps: StepPattern = None,
        modules: str | Sequence[str] = "*",
        module_types: str | Sequence[str] = (),
        ops: str | Sequence[str] = "*",
        phases: Iterable[str] = PHASES,
        training: bool | None = None,
        source: bool = True,
        compiled: str = "keep",
        on_hazard: str = "record",
        verify_values: bool = False,
        on_nonfinite: str = "record",
        rules: Iterable[Rule] = (),
        update_bytes: int = 1 << 28,
        keep_last: int | None = None,
        max_bytes: int | None = None,
        overwrite: bool = False,
        quiet: bool = False,
    ) -> None:
        if model is not None and not isinstance(model, nn.Module):
            hint = (
                "; is it the path? write DispatchMonitor(model, path)" if isinstance(model, (str, os.PathLike)) else ""
            )
            raise SettingError(f"model is a {type(model).__name__}, not a torch.nn.Module{hint}")
        names = None if model is None else [name for name, _ in model.named_modules(remove_duplicate=False)]
        self.settings: Settings = checked(
            record=record,
            stats=stats,
            steps=steps,
            modules=modules,
            module_types=module_types,
            rules=rules,
            update_bytes=update_bytes,
            ops=ops,
            phases=phases,
            source=source,
            training=training,
            compiled=compiled,
            on_hazard=on_hazard,
            verify_values=verify_values,
            on_nonfinite=on_nonfinite,
            keep_last=keep_last,
            max_bytes=max_bytes,
            names=names,
            types=None if model is None else module_types_of(model),
        )
        self.requested, self.overwrite, self.quiet = path, overwrite, quiet
        self.path: Path | None = None
        """The file that is or was written."""
        self.error: BaseException | None = None
        """What stopped the recording, if something did."""
        self._model = None if model is None else weakref.ref(model)
        self._recording: _Recording | None = None
        self._entered = 0

    @property
    def current_step(self) -> int:
        """The step that runs now; 0 outside the block."""
        return 0 if self._recording is None else self._recording.tracker.step

    def step(self) -> None:
        """End a step. Once this is called, neither an optimizer nor a call of the model ends one."""
        if self._recording is None:
            raise MonitorStateError("step() was called outside the monitor's with block")
        tracker = self._recording.tracker
        tracker.manual = True
        tracker.end_step()

    def __enter__(self) -> DispatchMonitor:
        if self._recording is not None:
            raise MonitorStateError("this monitor is open already; make another one to nest them")
        rank, world_size = rank_of()
        self.path = free_path(self.requested, rank, world_size, self.overwrite, again=self._entered > 0)
        self._entered += 1
        self.error = None
        model = None if self._model is None else self._model()
        with DisableTorchFunction():
            self._recording = _Recording(self, model, self.path, rank, world_size)
            OPEN.append(self)
            try:
                self._recording.open()
            except BaseException:
                self.__exit__(*sys.exc_info())
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if (recording := self._left()) is not None:
            recording.explain(error)
            recording.close(None if kind is None else f"{kind.__name__} in the training loop")

    def _left(self) -> _Recording | None:
        recording, self._recording = self._recording, None
        if self in OPEN:
            OPEN.remove(self)
        return recording


class _Recording:
    """One stretch from entering a monitor to leaving it."""

    def __init__(
        self, monitor: DispatchMonitor, model: nn.Module | None, path: Path, rank: int, world_size: int
    ) -> None:
        settings = monitor.settings
        self.monitor, self.settings, self.model, self.path = monitor, settings, model, path
        self.pid = os.getpid()
        self.start = perf_counter_ns()
        self.tables = Tables()
        self.statistics = Statistics(BATCH_SLOTS) if settings.stats else None
        self.values = Values(self.tables, self.statistics, len(OPEN), settings.verify_values)
        self.tracker = ModuleTracker(model, self.tables, settings.modules)
        self.tracker.step_ends = self.step_ended
        self.tracker.parameters_step = self.optimizer_runs
        self.tracker.unseen_writes = self.values.new_epoch
        self.sources = Sources(self.tables.sources) if settings.source else None
        if self.sources is not None:
            self.tracker.caller_of = self.sources.caller
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
        self.pauses = 0
        self.right_step = True
        self.calls_left_out = 0  # of the model, in the other of training and evaluation mode
        self.states: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self.parameter_names: dict[int, tuple[weakref.ref[nn.Module], str, str]] = {}
        self.rows_before_step = 0
        self.warned = False
        self.observe(tuple(settings.record))
        self.stance: Any = None  # of torch.compile
        converter = Converter(rank, self.start, settings.stats)
        metadata, keep_last = self.metadata(rank, world_size), settings.keep_last
        self.handover = Handover(self.mode, self.values, self.statistics, self.tables, self.hazards)
        self.sink = Sink(
            TraceWriter(path, metadata) if keep_last is None else FlightRecorder(path, metadata, keep_last),
            converter,
            self.handover.copy,
            BATCH_NS / 1e9,
            settings.max_bytes,
        )

    def metadata(self, rank: int, world_size: int) -> dict[str, Any]:
        from dispatchmon import __version__

        model = self.model
        return {
            "format": FORMAT_VERSION,
            "dispatchmon": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "rank": rank,
            "world_size": world_size,
            "model": None if model is None else type(model).__name__,
            "modules": [] if model is None else described_modules(model),
            "parameters": [] if model is None else described_parameters(model),
            "settings": self.settings.described(),
            "statistics_backend": None if self.statistics is None else self.statistics.backend,
            "threads": torch.get_num_threads(),
            "flush": {"rows": BATCH_ROWS, "seconds": BATCH_NS / 1e9},
            "command": sys.argv,
            "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        }  # fmt: skip

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
                self.writer, self.tracker, self.parameter_names, self.name_of, types, phases, settings.update_bytes, line
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
            for named in (self.model.named_parameters, self.model.named_buffers):
                for name, tensor in named(remove_duplicate=False):
                    if not nn.parameter.is_lazy(tensor):
                        self.values.name(tensor, name)
            # A weak reference to the parameter itself would make `torch.utils.swap_tensors` refuse it.
            for path, module in self.model.named_modules():
                for key, parameter in module._parameters.items():
                    place = weakref.ref(module), key, f"{path}.{key}" if path else key
                    self.parameter_names.setdefault(id(parameter), place)
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
        if self.stance is not None:
            self.stance.__exit__(None, None, None)
        self.tracker.close()
        if self.modules is not None:
            self.modules.new_step()
        if self.parameters is not None:
            self.parameters.close()
        self.flush()
        self.values.untag()
        step = self.tracker.step
        self.sink.close({"reason": reason, "step": step, "skipped": self.skipped(), "monitor_ns": self.mode.own_ns})
        self.complain()
        self.monitor.error = self.sink.error
        if not self.monitor.quiet and self.sink.error is None:
            print(self.closing_line(), file=sys.stderr)

    def skipped(self) -> dict[str, int]:
        """What ran and was not recorded, by reason."""
        reasons = {
            "calls of compiled modules, whose fused operators cannot be seen": self.tracker.compiled_calls,
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

    def closing_line(self) -> str:
        tally, closing = self.sink.converter.tally, self.sink.closed
        size = self.path.stat().st_size if self.path.exists() else 0
        stands_out = "no NaN or Inf" if tally.first_nonfinite is None else first_nonfinite(tally.first_nonfinite)
        if tally.undeclared:
            stands_out = f"{plural(tally.undeclared, 'undeclared write')}, {stands_out}"
        if tally.hazards:
            stands_out = f"{plural(tally.hazards, 'hazard')}, {stands_out}"
        if self.sink.stopped:
            stands_out = f"{stands_out}; recording stopped: {self.sink.stopped}"
        what = "operators" if self.settings.record == ("ops",) else "events"
        did = f"{spaced(closing['events'])} {what} in {plural(closing['steps'], 'step')}"
        writes = f"{plural(closing['writes'], 'in-place write')}, " if self.dispatches else ""  # else they are not seen
        command = "audit" if tally.hazards else "nonfinite" if tally.first_nonfinite is not None else "summarize"
        return (
            f"dispatchmon: {did} to {self.path} ({size / 1e6:.1f} MB), {writes}{stands_out}. "
            f"Next: dispatchmon {command} {self.path}"
        )

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

    def catch_up(self) -> tuple[Converter, bytes]:
        """Have all events so far converted; the converter, and the packed events that were not handed over before."""
        events = bytes(self.mode.events)
        self.flush()
        wait_for(lambda: self.sink.converter.number >= self.handover.number or self.sink.over)
        return self.sink.converter, events

    # ------------------------------------------------------------------------------------------------- steps
    def step_ended(self, step: int) -> None:
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
        self.mode.idle = self.tracker.paused = False
        wrap_while_needed()
        if not self.pushed and self.dispatches:
            self.mode.__enter__()  # type: ignore[no-untyped-call]
            self.pushed = True

    def pause(self) -> None:
        """Run without the mode, or with one that passes everything on where another mode lies above it."""
        self.mode.idle = self.tracker.paused = True
        wrap_while_needed()
        self.pauses += 1
        if self.pushed and current_dispatch_mode() is self.mode:
            self.mode.__exit__(None, None, None)
            self.pushed = False

    # ------------------------------------------------------------------------------------------------- names
    def optimizer_runs(self, optimizer: Optimizer, after: bool) -> None:
        """Name gradients before an optimizer steps, and its new states after."""
        if not self.mode.idle:
            with DisableTorchFunction():
                self.name_gradients(optimizer) if not after else self.name_states(optimizer)
        if self.parameters is not None:
            self.parameters.after(optimizer) if after else self.parameters.arm(optimizer)

    def name_gradients(self, optimizer: Optimizer) -> None:
        self.rows_before_step = len(self.values.rows)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if (name := self.name_of(parameter)) is not None:
                    self.values.name(
                        parameter, name
                    )  # its memory may be new: `.data =`, `model.double()`, a lazy module
                    if parameter.grad is not None:
                        self.values.name(parameter.grad, name + ".grad")

    def name_states(self, optimizer: Optimizer) -> None:
        if self.states.get(optimizer) == len(optimizer.state):
            return
        self.states[optimizer] = len(optimizer.state)
        named = []
        for parameter, state in optimizer.state.items():
            if (
                isinstance(parameter, torch.Tensor)
                and isinstance(state, dict)
                and (name := self.name_of(parameter)) is not None
            ):
                for key, value in state.items():
                    if isinstance(value, torch.Tensor):
                        self.values.name(value, f"{name}.{key}")
                        named.append(value)
        # the states were made in this step, before they could be named
        self.values.rename_rows(named, self.rows_before_step if self.rows_before_step <= len(self.values.rows) else 0)

    def name_of(self, parameter: torch.Tensor) -> str | None:
        known = self.parameter_names.get(id(parameter))
        if known is None or (module := known[0]()) is None or module._parameters.get(known[1]) is not parameter:
            return None  # an id is handed out again
        return known[2]


def described_modules(model: nn.Module) -> list[dict[str, Any]]:
    """The modules of a model, for the metadata of the trace."""
    return [{"name": n, "class": type(m).__name__} for n, m in model.named_modules(remove_duplicate=False)]


def owned_by(model: nn.Module) -> dict[str, tuple[weakref.ref[nn.Module], str]]:
    """(module, key) of the parameters and persistent buffers, by name."""
    # A weak reference to the parameter itself would make `torch.utils.swap_tensors` refuse it.
    return {
        f"{path}.{key}" if path else key: (weakref.ref(module), key)
        for path, module in model.named_modules(remove_duplicate=False)
        for key in (*module._parameters, *module._buffers)
        if key not in module._non_persistent_buffers_set
    }


def described_parameters(model: nn.Module) -> list[dict[str, Any]]:
    """Its parameters; a lazy one has no shape yet."""
    lazy = nn.parameter.UninitializedParameter
    return [
        {
            "name": n,
            "shape": None if isinstance(p, lazy) else list(p.shape),
            "dtype": str(p.dtype).removeprefix("torch."),
        }
        for n, p in model.named_parameters(remove_duplicate=False)
    ]


def first_nonfinite(row: dict[str, Any]) -> str:
    """Where the first NaN or Inf was seen, in a few words."""
    where = f" in {row['module']}" if row["module"] else ""
    return f"first {'NaN' if row['nan'] else 'Inf'} in {row['op']}{where}, step {row['step']}"


def plural(n: int, what: str) -> str:
    """`1 step`, `12 345 steps`."""
    return f"{spaced(n)} {what}" if n == 1 else f"{spaced(n)} {what}s"


def spaced(n: int) -> str:
    """12 345"""
    return f"{n:,}".replace(",", " ")


def rank_of() -> tuple[int, int]:
    """(rank, world size) of this process."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return int(os.environ.get("RANK", "0") or 0), int(os.environ.get("WORLD_SIZE", "1") or 1)


def free_path(
    requested: str | os.PathLike[str] | None, rank: int, world_size: int, overwrite: bool, again: bool
) -> Path:
    """
    The file to write.

    Raises:
        TraceExistsError: it was asked for by name, and exists.
    """
    path = Path("trace.arrow" if requested is None else requested)
    if path.is_dir():
        path = path / "trace.arrow"
    suffix = f".rank{rank}{path.suffix}" if world_size > 1 else path.suffix
    first = path.with_name(path.stem + suffix)
    if requested is not None and not again:
        if first.exists() and not overwrite:
            raise TraceExistsError(f"{first} exists already: give another path, or overwrite=True to replace it")
        return first
    found, n = first, 1
    while found.exists() or (again and n == 1):
        n += 1
        found = path.with_name(f"{path.stem}-{n}{suffix}")
    return found


def forget_in_child() -> None:
    """A forked child (a DataLoader's worker) records nothing and never touches its parent's file."""
    for monitor in OPEN:
        if monitor._recording is not None:
            monitor._recording.mode.idle = True
            monitor._recording.tracker.close()


def close_at_exit() -> None:
    """A monitor that was entered without a `with` block, in a notebook say, is closed when the program ends."""
    for monitor in reversed(OPEN.copy()):
        if (recording := monitor._left()) is not None:
            recording.close("the program ended while the monitor was open")


os.register_at_fork(after_in_child=forget_in_child)
atexit.register(close_at_exit)
