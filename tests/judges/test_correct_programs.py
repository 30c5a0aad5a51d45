"""Programs that are right, repaired versions and look-alikes of bug reports: nothing may be said of them."""

from __future__ import annotations

import re

import pytest
import torch

from dispatchmon import DispatchMonitor
from folders import CASES
from reported import load

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
PROGRAMS = sorted((CASES / "correct").glob("*.py"))


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_nothing_is_said(path, tmp_path, capfd):
    """No hazard, not even while running; no NaN or Inf, neither by the command nor in the closing line."""
    case = load(path)
    torch.manual_seed(0)
    model, run = case.build()
    with DispatchMonitor(model, tmp_path / "t.arrow", on_hazard="raise") as monitor:
        run(model)
    assert monitor.error is None
    line = capfd.readouterr().err.splitlines()[-1]
    assert re.search(r"in-place writes?, no NaN or Inf( that did harm)?\. Next: dispatchmon summarize ", line), line
    assert monitor.trace.audit().hazards == ()
    assert not monitor.trace.nonfinite().found


@pytest.mark.parametrize("record", [("ops",), ("modules", "parameters")], ids="+".join)
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_nothing_is_said_while_it_runs(path, record, tmp_path):
    """`on_nonfinite="raise"` does not stop it."""
    case = load(path)
    torch.manual_seed(0)
    model, run = case.build()
    with DispatchMonitor(model, tmp_path / "t.arrow", record=record, on_nonfinite="raise", quiet=True) as monitor:
        run(model)
    assert monitor.error is None
