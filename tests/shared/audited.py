"""Running something under a monitor and auditing its trace, for tests."""

from __future__ import annotations

import importlib.util
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dispatchmon import DispatchMonitor, open_trace
from dispatchmon.analysis.audit import Audit, Finding, audit
from dispatchmon.torch_internals import shows_savings
from folders import CASES

NEEDS_SAVINGS = pytest.mark.skipif(
    not shows_savings, reason="this torch does not show what an autograd node saved, and the trace says so"
)


@dataclass
class Outcome:
    """What the audit said of a run, and how the run ended."""

    audit: Audit
    error: BaseException | None

    @property
    def hazards(self) -> tuple[Finding, ...]:
        """The errors and warnings."""
        return self.audit.hazards


def audited(run: Callable[[], Any], model: Any = None, **settings: Any) -> Outcome:
    """Run under a monitor, whatever it raises, and audit the trace."""
    error = None
    with tempfile.TemporaryDirectory() as folder:
        monitor = DispatchMonitor(model, Path(folder) / "trace.arrow", quiet=True, **settings)
        try:
            with monitor:
                run()
        except Exception as raised:
            error = raised
        if monitor.error is not None:
            raise monitor.error
        return Outcome(audit(open_trace(folder)), error)


def load_case(number: int) -> tuple[Path, ModuleType]:
    """A shared case."""
    (path,) = CASES.glob(f"case_{number:02}_*.py")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return path, module


def code_of(path: Path, source: str | None) -> str:
    """The text of a line, of `file.py:31 in forward`."""
    line = re.match(r".*:(\d+) in ", source or "")
    return path.read_text().splitlines()[int(line[1]) - 1].strip() if line else ""
