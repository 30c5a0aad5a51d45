"""What `import dispatchmon` gives, and what it costs."""

import functools
import re
import subprocess
import sys

import pytest

import dispatchmon
from dispatchmon import errors


@functools.cache
def modules_after(statement):
    """Return the names of the modules that a fresh interpreter has loaded after the statement."""
    command = [sys.executable, "-c", f"{statement}\nimport sys\nprint(*sys.modules)"]
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())


def test_exported_names():
    """The public names are these and no others."""
    assert dispatchmon.__all__ == [
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
        "TraceNotFoundError",
        "TraceVersionError",
        "__version__",
        "open_trace",
    ]


@pytest.mark.parametrize("name", dispatchmon.__all__)
def test_exported_names_exist(name):
    """Each public name can be read, and dir() shows it."""
    assert getattr(dispatchmon, name) is not None
    assert name in dir(dispatchmon)


def test_unknown_name():
    """A name that is not there raises the usual AttributeError, naming the package and the name."""
    with pytest.raises(AttributeError, match=re.escape("module 'dispatchmon' has no attribute 'Monitor'")):
        dispatchmon.Monitor  # noqa: B018


def test_every_error_is_exported():
    """Every exception of dispatchmon.errors is exported at the top."""
    defined = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert defined <= set(dispatchmon.__all__)


@pytest.mark.parametrize("heavy", ["torch", "pyarrow", "numpy"])
def test_import_is_light(heavy):
    """`import dispatchmon` does not load torch, pyarrow or numpy."""
    assert heavy not in modules_after("import dispatchmon")


def test_reading_needs_no_torch():
    """Opening traces does not load torch."""
    assert "torch" not in modules_after("from dispatchmon import Audit, NonFinite, Structure, Summary, Trace, open_trace")


@pytest.mark.slow
def test_monitor_loads_torch_only_when_named():
    """The first use of DispatchMonitor loads torch."""
    assert "torch" in modules_after("import dispatchmon\ndispatchmon.DispatchMonitor")
