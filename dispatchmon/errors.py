"""
The exceptions a user can meet.

    DispatchmonError                 every error of this package
     ├── SettingError                an argument that cannot be meant (also a ValueError)
     ├── MonitorStateError           a monitor used out of turn: entered twice, stepped while it is closed
     ├── TraceExistsError            the file to be written is there already
     ├── TraceInUseError             another monitor is writing the file
     ├── TraceNotFoundError          there is nothing to read at this path
     ├── NotATraceError              the file is not a dispatchmon trace, or is damaged beyond reading
     ├── TraceVersionError           the trace was written by a newer, incompatible dispatchmon
     ├── HazardError                 a write took a value that somebody needed, and on_hazard="raise"
     ├── NonFiniteError              a NaN or Inf does harm, and on_nonfinite="raise"
     └── AlertError                  a rule with action="raise" was met

Each message is one line that says what is wrong and what to do about it.
"""

from __future__ import annotations


class DispatchmonError(Exception):
    """Base of every error that this package raises on purpose."""


class SettingError(DispatchmonError, ValueError):
    """An argument of `DispatchMonitor`, or of a question to a `Trace`, that cannot be meant."""


class MonitorStateError(DispatchmonError, RuntimeError):
    """A monitor was used out of turn."""


class TraceExistsError(DispatchmonError, FileExistsError):
    """The trace to be written exists already."""


class TraceInUseError(DispatchmonError, BlockingIOError):
    """The trace to be written is being written by another monitor."""


class TraceNotFoundError(DispatchmonError, FileNotFoundError):
    """There is no trace at this path."""


class NotATraceError(DispatchmonError):
    """The file is not a trace of dispatchmon, or is damaged beyond reading."""


class TraceVersionError(DispatchmonError):
    """The trace was written in a format that this version cannot read."""


class HazardError(DispatchmonError, RuntimeError):
    """A write took a value that somebody still needed."""


class NonFiniteError(DispatchmonError, ArithmeticError):
    """There is a NaN or an Inf, and `on_nonfinite` or a rule asks to stop there."""


class AlertError(DispatchmonError):
    """A rule with `action="raise"` was met."""
