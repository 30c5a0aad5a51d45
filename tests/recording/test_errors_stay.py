"""What raises without the monitor raises the same error with it, and what does not raise does not."""

from __future__ import annotations

import re
import sys
import warnings

import pytest
import torch
from torch import nn

from comparison import differences, monitored, outcome
from dispatchmon import DispatchMonitor
from folders import CASES
from programs.faults import FAULTS
from recorded import COMPILES_UNDER_MODES
from reported import load

pytestmark = pytest.mark.slow

NAMES = sorted(path.stem for path in CASES.glob("case_*.py"))
# These read memory that nobody wrote, whose content is the allocator's: two runs differ anyway.
UNINITIALISED = ("case_43_rrelu_under_checkpoint", "case_101_projection_never_initialised")


@pytest.mark.parametrize("name", FAULTS)
def test_the_same_error(name, tmp_path):
    """The program raises torch's error, and with a monitor an error of the same type with the same words."""
    if name == "graph break" and not COMPILES_UNDER_MODES:
        pytest.skip("before torch 2.9 torch.compile compiles nothing under any dispatch mode")
    build, message = FAULTS[name]
    alone = outcome(build)
    watched = outcome(build, monitored(tmp_path / "trace.arrow"))
    assert alone["error"] is not None
    assert message in alone["error"][1]
    assert watched["error"] == alone["error"]
    assert not differences(alone, watched)


@pytest.mark.parametrize("name", NAMES)
def test_cases(name, tmp_path):
    """A faulty program from a bug report fails, or silently goes wrong, in the same way to the last bit."""
    case = load(CASES / f"{name}.py")
    alone = outcome(case.build)
    watched = outcome(case.build, monitored(tmp_path / "trace.arrow"))
    if name in UNINITIALISED:
        assert watched["error"] == alone["error"]
    else:
        assert not differences(alone, watched), (alone["error"], watched["error"])
    raises = case.EXPECT.get("raises") if isinstance(case.EXPECT, dict) else None
    assert (alone["error"] is None) == (raises is None)
    if raises is not None:
        assert re.search(raises, alone["error"][1])


def test_the_same_warnings(tmp_path):
    """Warnings have the same category and words, and name the same line of the user's file."""

    class Warns(nn.Module):
        def forward(self, x):
            warnings.warn("from a module", stacklevel=4)
            return x

    def run():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            Warns()(torch.ones(1))
            torch.ones(1, 2).expand(2, 2).masked_fill_(torch.ones(2, 2, dtype=torch.bool), 1.0)
            torch.add(torch.ones(3), 1, out=torch.empty(2))
            torch.optim.lr_scheduler.StepLR(torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0), 1).step()
        return [(w.category, str(w.message), w.filename, w.lineno) for w in caught]

    alone = run()
    with DispatchMonitor(path=tmp_path / "trace.arrow", quiet=True):
        watched = run()
    assert len(alone) == 4
    assert {filename for *_, filename, _ in alone if "torch" not in filename} == {__file__}
    assert watched == alone


def test_deep_models_do_not_reach_the_recursion_limit(tmp_path):
    """A module call costs no more frames of Python's stack than without a monitor."""

    class Around(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return x if self.inner is None else self.inner(x)

    model = None
    for _ in range(200):
        model = Around(model)
    x = torch.ones(1)

    def runs_within(limit):
        before = sys.getrecursionlimit()
        sys.setrecursionlimit(limit)
        try:
            return model(x) is x
        except RecursionError:
            return False
        finally:
            sys.setrecursionlimit(before)

    needed = next(limit for limit in range(500, 3000, 20) if runs_within(limit))
    with DispatchMonitor(model, tmp_path / "trace.arrow", quiet=True):
        assert runs_within(needed + 60)  # what the handlers themselves need, once


def test_an_interrupt_passes_through(tmp_path):
    """KeyboardInterrupt inside a module leaves the block as it is, and the next block records as ever."""

    class Interrupted(nn.Module):
        def forward(self, x):
            raise KeyboardInterrupt

    model = nn.Sequential(nn.Linear(2, 2), Interrupted())
    with pytest.raises(KeyboardInterrupt), DispatchMonitor(model, tmp_path / "trace.arrow", quiet=True):
        model(torch.ones(1, 2))
    with DispatchMonitor(model, tmp_path / "again.arrow", quiet=True) as monitor:
        model[0](torch.ones(1, 2))
    assert monitor.error is None
