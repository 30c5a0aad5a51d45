"""The audit: what it says of single writes, and what it leaves alone."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from audited import NEEDS_SAVINGS, audited
from dispatchmon import DispatchMonitor, HazardError, open_trace
from dispatchmon.analysis.audit import audit
from dispatchmon.analysis.audit.pointwise import is_pointwise
from dispatchmon.memory.regions import overlap, region, repeats
from dispatchmon.torch_internals import shows_savings
from recorded import needs_compilation, record


@pytest.mark.skipif(shows_savings, reason="this torch shows what an autograd node saved")
def test_what_torch_does_not_show_is_said_to_be_unknown(tmp_path):
    """Before it did, a write over a saved value cannot be told: nothing is claimed, and the trace says so."""

    def run():
        with DispatchMonitor(None, tmp_path / "t.arrow", quiet=True):
            y = torch.ones(3, requires_grad=True).exp()
            y.mul_(2)
            y.sum().backward()

    with pytest.raises(RuntimeError, match="modified by an inplace"):
        run()
    assert [why for why in open_trace(tmp_path / "t.arrow").files[0].skipped if "this version of torch" in why]


def only(outcome, kind):
    """The one hazard."""
    (finding,) = outcome.hazards
    assert finding.kind == kind
    return finding


def exp_then(write):
    """A program that writes over what `exp` saved."""

    def run():
        y = torch.exp(torch.ones(3, requires_grad=True))
        z = y.sum()
        write(y)
        z.backward()

    return run


# ------------------------------------------------------------------------------------------------- saved values
@NEEDS_SAVINGS
def test_a_silent_write_is_an_error_and_says_what_was_lost():
    """`.data` moves no counter: nothing is raised, the statistics before and after stand in the finding."""
    found = only(audited(exp_then(lambda y: y.data.mul_(2))), "write-after-save")
    assert (found.severity, found.raises, found.explains) == ("error", False, False)
    assert (found.op, found.victim.op, found.saved_as) == (
        "aten.mul_.Tensor",
        "aten.exp.default",
        "ExpBackward0.result",
    )
    assert found.before["max"] == pytest.approx(2.7182817)
    assert found.after["max"] == pytest.approx(5.4365635)
    assert found.message.endswith("autograd cannot notice, and the gradient is silently wrong")
    assert found.suggestion == "write `y = y.mul(2)`, which leaves the old value alone"


@NEEDS_SAVINGS
def test_hazard_rows_carry_the_write_and_both_events():
    """The row is that of the write; `cause_event` wrote, `forward_event` had saved."""
    rows = record(exp_then(lambda y: y.data.mul_(2)))
    (hazard,) = [r for r in rows if r["kind"] == "hazard"]
    by_event = {r["event"]: r["op"] for r in rows if r["kind"] == "op"}
    assert by_event[hazard["cause_event"]] == hazard["op"] == "aten.mul_.Tensor"
    assert by_event[hazard["forward_event"]] == "aten.exp.default"
    assert (hazard["role"], hazard["arg"], hazard["shape"], hazard["dtype"]) == ("silent", "result", [3], "float32")


@NEEDS_SAVINGS
def test_a_write_to_other_elements_is_loud_all_the_same_and_says_so():
    """The version counter belongs to the base: row 0 was written, row 1 was saved."""

    def run():
        base = torch.zeros(2, 3)
        y = (torch.ones(3, requires_grad=True) * base[1]).sum()
        base[0] = 1
        y.backward()

    found = only(audited(run), "write-after-save")
    assert found.raises
    assert "none of the saved ones, but one version counter belongs to all of it" in found.message


@NEEDS_SAVINGS
def test_a_silent_write_to_other_elements_is_no_finding():
    """Nobody can notice it: what was saved is as it was."""

    def run():
        base = torch.zeros(2, 3)
        y = (torch.ones(3, requires_grad=True) * base[1]).sum()
        base.data[0] = 1
        y.backward()

    assert audited(run).hazards == ()


@NEEDS_SAVINGS
def test_content_that_no_gradient_reads_may_be_overwritten():
    """Pooling saves its input for the shape alone."""

    def run():
        h = torch.randn(1, 4, 4, requires_grad=True) * 1
        y = F.avg_pool2d(h, 2)
        h.data.zero_()
        y.sum().backward()

    assert audited(run).hazards == ()


@NEEDS_SAVINGS
def test_a_parameter_stepped_before_its_region_is_recomputed():
    """A checkpoint checks nothing: the recomputation reads the new parameter, and the gradient is silently wrong."""
    layer = nn.Linear(3, 3)

    def run():
        y = checkpoint(lambda x: torch.tanh(layer(x)), torch.ones(2, 3, requires_grad=True), use_reentrant=False)
        with torch.no_grad():
            layer.weight.add_(1)
        y.sum().backward()

    found = [f for f in audited(run, layer).hazards if f.kind == "write-after-save"]
    assert found
    assert all(f.raises is False and f.name == "weight" and "recomputed" in f.message for f in found)


@NEEDS_SAVINGS
def test_an_error_that_somebody_caught_is_not_the_end():
    """Only the error that left the block is explained."""
    run = exp_then(lambda y: y.mul_(2))

    def caught():
        try:
            run()
        except RuntimeError:
            pass

    assert audited(caught).hazards == ()
    assert only(audited(run), "write-after-save").explains


@NEEDS_SAVINGS
def test_savings_of_steps_that_were_not_recorded_are_unknown(tmp_path):
    """A node made in such a step cannot be judged, and the trace says so."""
    path = tmp_path / "trace.arrow"
    with DispatchMonitor(None, path, quiet=True, steps="1:") as monitor:
        y = torch.exp(torch.ones(3, requires_grad=True))
        monitor.step()
        y.data.mul_(2)
        y.sum().backward()
    from dispatchmon import open_trace

    (reason,) = [r for r in open_trace(path).files[0].skipped if r.startswith("savings of")]
    assert reason == "savings of autograd nodes whose operators were not recorded, whose writes cannot be judged"


# ------------------------------------------------------------------------------------------------- borders
class Residual(nn.Module):
    """A pre-activation block whose ReLU eats the skip, or not."""

    def __init__(self, inplace):
        super().__init__()
        self.branch = nn.Sequential(nn.ReLU(inplace), nn.Linear(4, 4))

    def forward(self, x):
        return self.branch(x) + x


@pytest.mark.parametrize("inplace", [True, False])
@NEEDS_SAVINGS
def test_a_relu_that_eats_the_skip(inplace):
    """The enclosing module was given the tensor, does not hand it back, and the caller reads it again."""
    model = nn.Sequential(nn.Linear(4, 4), Residual(inplace))
    outcome = audited(lambda: model(torch.randn(2, 4)), model)
    if inplace:
        found = only(outcome, "input-overwritten")
        assert (found.op, found.module) == ("aten.relu_.default", "1.branch.0")
        assert (found.victim.op, found.victim.module) == ("aten.add.Tensor", "1")
        assert found.suggestion == "set inplace=False in 1.branch.0 (ReLU)"
    else:
        assert outcome.hazards == ()


@NEEDS_SAVINGS
def test_best_weights_that_are_trained_over():
    """A state_dict shares memory with the model: loading it back restores nothing."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train():
        optimizer.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()

    def wrong():
        best = model.state_dict()
        train()
        model.load_state_dict(best)

    def right():
        best = copy.deepcopy(model.state_dict())
        train()
        model.load_state_dict(best)

    found = audited(wrong, model).hazards
    assert {(f.kind, f.phase) for f in found} == {("alias-overwritten", "optimizer")}
    assert found[0].suggestion == "keep a copy: .detach().clone(), or copy.deepcopy(model.state_dict())"
    assert audited(right, model).hazards == ()


@NEEDS_SAVINGS
def test_expanded_memory_refuses_a_write_in_torchs_words():
    """The kernel raised: the finding quotes it in short."""

    def run():
        torch.zeros(1, 3).expand(2, 3).add_(1)

    outcome = audited(run)
    found = only(outcome, "blocked-write")
    assert "more than one element of the written-to tensor refers to a single memory location" in found.message
    assert isinstance(outcome.error, RuntimeError)


@NEEDS_SAVINGS
def test_normal_training_is_quiet():
    """Convolution, batch norm, ReLU in place, dropout in place, SGD with momentum: notes only."""
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(True), nn.Flatten(), nn.Linear(48, 2), nn.Dropout(0.1, True)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def run():
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(2, 1, 6, 6)).sum().backward()
            optimizer.step()

    outcome = audited(run, model)
    assert outcome.error is None
    assert outcome.hazards == ()
    assert {f.kind for f in outcome.audit.findings} == {"undeclared-write", "buffer-write"}
    assert {(w.op, w.module) for w in outcome.audit.inventory} >= {
        ("aten.relu_.default", "2"),
        ("aten.mul_.Tensor", "5"),
    }


# ------------------------------------------------------------------------------------------------- while running
@NEEDS_SAVINGS
def test_on_hazard_warns_at_once_and_once(tmp_path):
    """The warning comes while the program runs, one for each place."""
    with (
        warnings.catch_warnings(record=True) as said,
        DispatchMonitor(None, tmp_path / "t.arrow", quiet=True, on_hazard="warn"),
    ):
        warnings.simplefilter("always")
        for _ in range(3):
            exp_then(lambda y: y.data.mul_(2))()
    texts = [str(w.message) for w in said if "dispatchmon" in str(w.message)]
    assert len(texts) == 1
    assert texts[0].startswith("dispatchmon: `aten.mul_.Tensor` at test_audit.py:")


@NEEDS_SAVINGS
def test_on_hazard_raises_at_the_operator(tmp_path):
    """`HazardError` leaves the backward pass that would have read the value; the trace is whole."""
    path = tmp_path / "t.arrow"
    monitor = DispatchMonitor(None, path, quiet=True, on_hazard="raise")
    with pytest.raises(HazardError, match="silently wrong"), monitor:
        exp_then(lambda y: y.data.mul_(2))()
    assert monitor.error is None


# ------------------------------------------------------------------------------------------------- memory
@NEEDS_SAVINGS
def test_regions():
    """Columns of a matrix interleave without overlapping; an expanded tensor repeats its cells."""
    left, right = region((4, 2), (4, 1), 0, 4), region((4, 2), (4, 1), 2, 4)
    assert not overlap(left, right)
    assert overlap(left, region((4,), (4,), 1, 4))
    assert not overlap(region((0,), (1,), 0, 4), left)
    assert repeats(region((2, 3), (0, 1), 0, 4))
    assert repeats(region((3, 3), (1, 1), 0, 4))
    assert not repeats(region((3, 4), (4, 1), 0, 4))
    assert not repeats(region((4, 3), (1, 4), 0, 4))


@NEEDS_SAVINGS
def test_pointwise_operators_are_those_that_torch_tags():
    """The table by names agrees with the tag of each overload that writes."""
    wrong = []
    for name in torch._C._dispatch_get_all_op_names():
        base, _, overload = name.removeprefix("aten::").partition(".")
        if not name.startswith("aten::") or not hasattr(torch.ops.aten, base):
            continue
        packet = getattr(torch.ops.aten, base)
        operator = getattr(packet, overload or "default", None)
        if operator is None or not any(a.alias_info and a.alias_info.is_write for a in operator._schema.arguments):
            continue
        tagged = torch.Tag.pointwise in operator.tags or base in ("copy_", "copy", "clip") or "Scalar" in overload
        if is_pointwise(str(operator)) and not tagged:
            wrong.append(str(operator))
        if torch.Tag.pointwise in operator.tags and not is_pointwise(str(operator)):
            wrong.append(str(operator))
    assert wrong == []


@pytest.mark.parametrize("n", [1, 3])
@NEEDS_SAVINGS
def test_an_operator_that_clones_its_old_values_is_no_hazard_for_its_own_result(n: int) -> None:
    """`_foreach_pow_` dispatches a clone for each tensor, saves its results, and runs backward without a finding."""
    def run() -> None:
        bases = [torch.full((2,), 2.0 + i, requires_grad=True) for i in range(n)]
        exponents = [torch.full((2,), 3.0, requires_grad=True) for _ in range(n)]
        values = [b * 1 for b in bases]
        torch._foreach_pow_(values, exponents)
        sum(v.sum() for v in values).backward()

    assert [r["arguments"] for r in record(run) if r["kind"] == "hazard"] == []


@NEEDS_SAVINGS
@needs_compilation
def test_what_a_compiled_region_saved_is_said_to_be_unknown(tmp_path):
    """A write over its input after it ran: nobody outside can tell what it saved, so nothing is claimed, and that is said."""
    torch._dynamo.reset()
    double = torch.compile(lambda x: (x * x).sin(), backend="aot_eager")
    with DispatchMonitor(None, tmp_path / "t.arrow", quiet=True):
        w = torch.ones(3, requires_grad=True)
        y = double(w)
        with torch.no_grad():
            w.data.mul_(2)
        y.sum().backward()
    trace = open_trace(tmp_path / "t.arrow")
    assert audit(trace).hazards == ()
    assert [why for why in trace.files[0].skipped if "savings of compiled regions" in why]


class SkipInOneExpression(nn.Module):
    """`x + f(act(x))`: the skip is on the stack when the activation writes over it."""

    def __init__(self):
        super().__init__()
        self.act, self.lin = nn.ELU(inplace=True), nn.Linear(4, 4)

    def forward(self, x):
        return x + self.lin(self.act(x))


class SkipAfterTheActivation(SkipInOneExpression):
    """The skip is meant to be the activated value."""

    def forward(self, x):
        x = self.act(x)
        return x + self.lin(x)


class OtherFactor(SkipInOneExpression):
    """What stands on the stack is another value."""

    def forward(self, x):
        y = self.lin(x)
        return y * self.act(x * 2)


@pytest.mark.parametrize(("kind", "found"), [(SkipInOneExpression, 1), (SkipAfterTheActivation, 0), (OtherFactor, 0)])
def test_a_skip_that_stands_in_the_same_expression(kind, found):
    """The name is loaded before the call, and its value used after it."""
    model = kind()
    hazards = audited(lambda: model(torch.randn(2, 4)).sum().backward(), model).hazards
    assert len([f for f in hazards if f.kind == "input-overwritten"]) == len(hazards) == found
    assert all("old name" in f.message and f.victim.op == "aten.add.Tensor" for f in hazards)
