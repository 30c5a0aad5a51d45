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
        "TraceInUseError",
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


ELSEWHERE = """
import importlib, os, pkgutil, sys
import click, duckdb, numpy, pyarrow.ipc, rich, torch, torch._dynamo, xxhash  # what they need of a system is their own affair

missing = "resource fcntl pwd grp termios tty pty syslog dispatchmon.statistics._kernel".split()
sys.modules.update(dict.fromkeys(missing))
for name in "register_at_fork fork fstatvfs O_CLOEXEC getuid geteuid uname getloadavg sched_getaffinity pread pwrite".split():
    delattr(os, name)

import dispatchmon, dispatchmon_cli
packages = (dispatchmon, dispatchmon_cli)
names = [m.name for p in packages for m in pkgutil.walk_packages(p.__path__, p.__name__ + ".") if m.name not in missing]
for name in names:
    if not name.endswith(".__main__"):
        importlib.import_module(name)

with dispatchmon.DispatchMonitor(None, sys.argv[1], quiet=True) as monitor:
    torch.ones(3).mul(2)
assert monitor.error is None, monitor.error
print(len(names), dispatchmon.open_trace(sys.argv[1]).rows)
"""


@pytest.mark.slow
def test_nothing_that_only_unix_has_is_needed(tmp_path):
    """Without its modules and functions, and without the kernel, every module imports, and three tensors are recorded."""
    command = [sys.executable, "-c", ELSEWHERE, str(tmp_path / "t.arrow")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    modules, rows = map(int, done.stdout.split())
    assert modules > 100
    assert rows == 3
