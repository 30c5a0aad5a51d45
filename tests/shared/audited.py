"""Running something under a monitor and auditing its trace, for tests."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dispatchmon import DispatchMonitor, open_trace
from dispatchmon.analysis.audit import Audit, Finding, audit
from dispatchmon.torch_internals import shows_savings

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
