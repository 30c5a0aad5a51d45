"""`dispatchmon audit` on the command line: what it prints, and its exit status."""

from __future__ import annotations

import json

import pytest
import torch

from audited import NEEDS_SAVINGS
from command_line import run
from dispatchmon import DispatchMonitor


@pytest.fixture
def clean(tmp_path):
    """A trace of one write that nobody can notice."""
    path = tmp_path / "clean.arrow"
    with DispatchMonitor(None, path, quiet=True):
        torch.zeros(3).add_(1)
    return path


@pytest.fixture
def faulty(tmp_path):
    """A trace that ends with autograd's error: `exp` saved its result, and `mul_` wrote over it."""
    path = tmp_path / "faulty.arrow"

    def program():
        with DispatchMonitor(None, path, quiet=True):
            y = torch.ones(3, requires_grad=True).exp()
            y.mul_(2)
            y.sum().backward()

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        program()
    return path


def test_a_run_without_hazards(clean, capsys):
    """Exit status 0; the write is in the inventory, and one by one with --all."""
    status, out, _ = run(capsys, "audit", clean)
    assert status == 0
    assert "aten.add_.Tensor" in out
    status, out, _ = run(capsys, "audit", clean, "--all", "--format", "json")
    assert status == 0
    answer = json.loads(out)
    assert (answer["writes"], answer["findings"]) == (1, [])


@NEEDS_SAVINGS
def test_a_run_that_autograd_refused(faulty, capsys):
    """Exit status 2; the finding says who wrote, who had saved it, and what torch said."""
    status, out, err = run(capsys, "audit", faulty)
    assert status == 2
    assert out.index("aten.mul_.Tensor") < out.index("aten.exp.default")
    assert "incomplete" in err
    status, out, _ = run(capsys, "audit", faulty, "--format", "json")
    assert status == 2
    (finding,) = json.loads(out)["findings"]
    assert (finding["kind"], finding["severity"], finding["op"]) == ("write-after-save", "error", "aten.mul_.Tensor")
    assert "torch said: one of the variables needed for gradient computation" in finding["message"]
