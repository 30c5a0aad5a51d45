"""
See every number a model computes, and who wrote over it.

    from dispatchmon import DispatchMonitor

    with DispatchMonitor(model, "trace.arrow"):
        train(model)

    trace = open_trace("trace.arrow")
    print(trace.summarize())

Importing this package loads neither torch nor pyarrow; the first use of `DispatchMonitor` or `open_trace` does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from dispatchmon.errors import (
    AlertError,
    DispatchmonError,
    HazardError,
    MonitorStateError,
    NonFiniteError,
    NotATraceError,
    SettingError,
    TraceExistsError,
    TraceInUseError,
    TraceNotFoundError,
    TraceVersionError,
)
from dispatchmon.version import VERSION as __version__

if TYPE_CHECKING:
    from dispatchmon.analysis.audit import Audit
    from dispatchmon.analysis.nonfinite import NonFinite
    from dispatchmon.analysis.structure import Structure
    from dispatchmon.analysis.summary import Summary
    from dispatchmon.mode import DispatchMonitor
    from dispatchmon.observing.rules import Rule
    from dispatchmon.trace import Trace, open_trace

__all__ = [
    "AlertError",
    "Audit",
    "DispatchMonitor",
    "DispatchmonError",
    "HazardError",
    "MonitorStateError",
    "NonFinite",
    "NonFiniteError",
    "NotATraceError",
    "Rule",
    "SettingError",
    "Structure",
    "Summary",
    "Trace",
    "TraceExistsError",
    "TraceInUseError",
    "TraceNotFoundError",
    "TraceVersionError",
    "__version__",
    "open_trace",
]


_HOMES = {
    "Audit": "dispatchmon.analysis.audit",
    "DispatchMonitor": "dispatchmon.mode",
    "NonFinite": "dispatchmon.analysis.nonfinite",
    "Rule": "dispatchmon.observing.rules",
    "Structure": "dispatchmon.analysis.structure",
    "Summary": "dispatchmon.analysis.summary",
    "Trace": "dispatchmon.trace",
    "open_trace": "dispatchmon.trace",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
