"""`DispatchMonitor`: the context manager that records a training loop."""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import torch
from torch import nn

from dispatchmon.errors import MonitorStateError, SettingError, TraceExistsError, TraceInUseError
from dispatchmon.observing.module_values import module_types_of
from dispatchmon.observing.rules import Rule
from dispatchmon.recording.assembly import Recording
from dispatchmon.schema import PHASES, STATISTICS
from dispatchmon.settings import Settings, StepPattern, checked
from dispatchmon.torch_internals import DisableTorchFunction, load_dynamo

if TYPE_CHECKING:
    from dispatchmon.trace import Trace

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
        on_nonfinite: what to do once a NaN or Inf does harm, in a loss, a gradient that is used, a parameter, a buffer or
            a state, or at the end of the block: `"record"` it, `"warn"` once, or `"raise"` a `NonFiniteError`; both name
            the operator that made it, and its line. Without `"ops"` it is the first place in modules and parameters.
        rules: conditions on modules and parameters to be checked while training; see `Rule`.
        update_bytes: memory for copies of parameters during an optimizer's step, from which updates are measured; what does
            not fit is measured in turn, a part each step. 0: no updates.
        keep_last: keep only so many recorded steps, the last ones, and those up to the first NaN and Inf that is an origin.
        max_bytes: stop recording before the trace is larger than this, give or take one batch.
        overwrite: replace a trace that exists.
        quiet: no closing line on stderr.

    Raises:
        SettingError: an argument cannot be meant.
        TraceExistsError: on entering, when `path` exists and `overwrite` is False.
        TraceInUseError: on entering, when another monitor is writing it.
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
        self._recording: Recording | None = None
        self._entered = 0

    @property
    def current_step(self) -> int:
        """The step that runs now; 0 outside the block."""
        return 0 if self._recording is None else self._recording.tracker.steps.number

    @property
    def trace(self) -> Trace:
        """
        What was written, opened for reading; of several ranks this one's file.

        Raises:
            MonitorStateError: the block was not entered, or not left yet.
            TraceNotFoundError, NotATraceError: as of `open_trace`; `error` says what went wrong while it was written.
        """
        from dispatchmon.trace import open_trace  # what reads a trace is loaded when one is read

        if self.path is None:
            raise MonitorStateError(
                "there is no trace yet: enter the monitor, as `with monitor:`, and train in the block"
            )
        if self._recording is not None:
            raise MonitorStateError(f"{self.path} is still being written: leave the monitor's with block first")
        return open_trace(self.path)

    def __repr__(self) -> str:
        model = None if self._model is None else self._model()
        whose = (
            "" if self._model is None else f" of {'a model that is gone' if model is None else type(model).__name__}"
        )
        if self._recording is not None:
            state = f"writing {self.path}, step {self.current_step}"
        elif self.path is None:
            state = "not entered yet"
        else:
            state = (
                f"wrote {self.path}"
                if self.error is None
                else f"stopped by {type(self.error).__name__}, wrote {self.path}"
            )
        return f"<DispatchMonitor{whose}: {state}>"

    def step(self) -> None:
        """End a step. Once this is called, neither an optimizer nor a call of the model ends one."""
        if self._recording is None:
            raise MonitorStateError("step() was called outside the monitor's with block")
        steps = self._recording.tracker.steps
        steps.manual = True
        steps.end()

    def __enter__(self) -> DispatchMonitor:
        if self._recording is not None:
            raise MonitorStateError("this monitor is open already; make another one to nest them")
        rank, world_size = rank_of()
        self.path = free_path(self.requested, rank, world_size, self.overwrite, again=self._entered > 0)
        self._entered += 1
        self.error = None
        model = None if self._model is None else self._model()
        load_dynamo()
        with DisableTorchFunction():
            self._recording = Recording(self.settings, model, self.path, rank, world_size, len(OPEN), self._failed)
            OPEN.append(self)
            try:
                self._recording.open()
            except TraceInUseError:  # nothing was begun
                self._left()
                self.path, self._entered = None, self._entered - 1
                raise
            except BaseException:
                self.__exit__(*sys.exc_info())
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if (recording := self._left()) is not None:
            recording.explain(error)
            recording.close(None if kind is None else f"{kind.__name__} in the training loop", self.quiet)

    def _failed(self, error: BaseException) -> None:
        self.error = error

    def _left(self) -> Recording | None:
        recording, self._recording = self._recording, None
        if self in OPEN:
            OPEN.remove(self)
        return recording


_MOST_NAME, _MOST_PATH = 255, 4000  # bytes, of the file systems in use


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
        SettingError: there can be no such file.
    """
    path = Path("trace.arrow" if requested is None else requested)
    require_possible(path)
    if path.is_dir():
        path = path / "trace.arrow"
    suffix = f".rank{rank}{path.suffix}" if world_size > 1 else path.suffix
    first = path.with_name(path.stem + suffix)
    if requested is not None and not again:
        if first.exists() and not overwrite:
            raise TraceExistsError(f"{first} exists already: give another path, or overwrite=True to replace it")
        if first.exists() and not first.is_file():
            raise SettingError(f"{first} is no regular file: a trace needs one, give another path")
        return first
    found, n = first, 1
    while found.exists() or (again and n == 1):
        n += 1
        found = path.with_name(f"{path.stem}-{n}{suffix}")
    return found


def require_possible(path: Path) -> None:
    """
    Refuse a path that no file system takes.

    Raises:
        SettingError: it has a NUL, or a name or a whole that is too long.
    """
    text = os.fsencode(path)
    if b"\0" in text:
        raise SettingError(f"path is {str(path)!r}: a path has no NUL")
    room = _MOST_NAME - len(".rank99999")
    if (longest := max(map(len, text.split(os.fsencode(os.sep))))) > room:
        raise SettingError(f"path has a name of {longest} bytes, {str(path)[:40]}…: give one of at most {room}")
    if len(text) > _MOST_PATH:
        raise SettingError(f"path has {len(text)} bytes, {str(path)[:40]}…: give one of at most {_MOST_PATH}")


def forget_in_child() -> None:
    """See `Recording.abandon`."""
    for monitor in OPEN:
        if monitor._recording is not None:
            monitor._recording.abandon()


def close_at_exit() -> None:
    """A monitor that was entered without a `with` block, in a notebook say, is closed when the program ends."""
    for monitor in reversed(OPEN.copy()):
        if (recording := monitor._left()) is not None:
            recording.close("the program ended while the monitor was open", monitor.quiet)


if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(after_in_child=forget_in_child)
atexit.register(close_at_exit)
