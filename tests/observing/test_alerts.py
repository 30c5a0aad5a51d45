"""Rules that are checked while training: what they notice, what they leave in the trace, and what they keep silent about."""

from __future__ import annotations

import json
import math
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from audited import NEEDS_SAVINGS
from dispatchmon import AlertError, DispatchMonitor, NonFiniteError, Rule, SettingError
from recorded import Row, record, rows_of

BOTH = {"record": ("modules", "parameters")}


class Scaled(nn.Module):
    """Multiplies by a number that a test sets."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.factor = nn.Linear(2, 2, bias=False), 1.0
        nn.init.eye_(self.linear.weight)

    def forward(self, x):
        return self.linear(x) * self.factor


def alerts(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["kind"] == "alert"]


def quietly(run: Any, *args: Any, **kwargs: Any) -> list[Row]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return record(run, *args, **kwargs)


def test_above_leaves_a_row_and_one_warning():
    """The alert shows the row that met the rule again, names its event, and is said once however often it comes."""
    model = Scaled()

    @torch.no_grad()  # each call is a step
    def run():
        for factor in (1, 100, 100):
            model.factor = factor
            model(torch.ones(1, 2))

    with pytest.warns(RuntimeWarning) as caught:
        rows = record(run, model, rules=[Rule("", "output", "norm", above=50)], **BOTH)
    assert [str(w.message) for w in caught] == [
        "dispatchmon: output of the model: norm is 141.4 (rule: (model) output norm above 50)"
    ]
    found = alerts(rows)
    assert [row["step"] for row in found] == [1, 2]
    cause = next(row for row in rows if row["event"] == found[0]["cause_event"])
    same = ("module", "module_call", "step", "phase", "op", "role", "arg", "shape", "storage", "version", "min", "norm")
    assert all(found[0][name] == cause[name] for name in same)
    assert json.loads(found[0]["arguments"]) == {
        "rule": "(model) output norm above 50", "value": pytest.approx(141.4, rel=1e-3)}  # fmt: skip
    assert all(row["cause_event"] is None for row in rows if row["kind"] != "alert")


def test_below():
    """A dead activation: its largest output is not above 0."""
    model = nn.ReLU()
    rows = quietly(
        lambda: model(-torch.ones(2)), model, rules=[Rule(statistic="magnitude", role="output", below=1e-9)], **BOTH
    )
    assert [row["role"] for row in alerts(rows)] == ["output"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("record_", [("modules",), ("ops", "modules")], ids="+".join)
def test_a_non_finite_value_always_alarms(value, record_):
    """A single NaN or Inf of either sign among finite elements, in forward and in backward."""
    model = Scaled()
    x = torch.ones(1, 2, requires_grad=True)

    def run():
        model.factor = value
        model(x).sum().backward()

    rows = quietly(run, model, rules=[Rule(nonfinite=True)], record=record_)
    assert {row["role"] for row in alerts(rows)} >= {"output", "grad_input"}


def test_zero_is_said_without_a_sign():
    """Which zero a minimum is, -0 or 0, is no news."""
    model, rule = nn.Identity(), Rule(role="output", statistic="min", below=1)
    with pytest.warns(RuntimeWarning, match=r": min is 0 \(rule: \* output min below 1\)$"):
        record(lambda: model(torch.tensor([-0.0, 2.0])), model, rules=[rule], **BOTH)


def test_infinite_elements_count_in_max_min_norm_and_magnitude():
    """The trace's statistics are of finite elements; a rule about a largest value is not blind to +Inf, nor one about a smallest to -Inf."""
    model = nn.Identity()
    for statistic, value, condition in (
        ("max", math.inf, {"above": 10}), ("norm", -math.inf, {"above": 10}), ("magnitude", math.inf, {"above": 10}),
        ("min", -math.inf, {"below": -10}),
    ):  # fmt: skip
        rule = Rule(role="output", statistic=statistic, **condition)
        x = torch.tensor([1.0, value])
        rows = quietly(lambda x=x: model(x), model, rules=[rule], **BOTH)
        assert len(alerts(rows)) == 1, statistic
        assert json.loads(alerts(rows)[0]["arguments"])["value"] == str(
            math.copysign(math.inf, 1 if "above" in condition else -1)
        )


def test_a_jump_relative_to_the_running_mean():
    """After ten ordinary steps one a hundred times larger alarms; the ones before and growth by halves do not."""
    model = nn.Identity()

    @torch.no_grad()  # each call is a step
    def run():
        for i in range(12):
            model(torch.full((4,), 1.0 + i % 2))
        model(torch.full((4,), 150.0))
        model(torch.full((4,), 1.0))

    rows = quietly(run, model, rules=[Rule("*", "input", "norm", jump=10)], **BOTH)
    found = alerts(rows)
    assert [row["step"] for row in found] == [12]
    said = json.loads(found[0]["arguments"])
    assert said["value"] == pytest.approx(300)
    assert 2 < said["running_mean"] < 4


def test_a_jump_needs_a_history():
    """The first values of a run, whatever they are, are no jump."""
    model = nn.Identity()
    values = [1e-8, 1.0, 1e8]
    rows = quietly(
        torch.no_grad()(lambda: [model(torch.full((2,), v)) for v in values]), model, rules=[Rule(jump=2)], **BOTH
    )
    assert not alerts(rows)


def test_missing_gradients_are_no_alarm():
    """Frozen parameters, an unused branch and steps without backward meet no rule about gradients being small."""
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)])
    model[2].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def run():
        for _ in range(3):
            optimizer.zero_grad()
            model[2](model[0](torch.ones(1, 2))).sum().backward()
            optimizer.step()
        model[0](torch.ones(1, 2))

    small = [Rule("*", role, "norm", below=1e-6) for role in ("grad", "raw_grad", "grad_input", "grad_output")]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = record(run, model, rules=[*small, Rule(nonfinite=True)], on_nonfinite="raise", **BOTH)
    assert not alerts(rows)


def test_the_ratio_of_an_update():
    """With SGD and no momentum it is the learning rate times the gradient's norm over the value's."""
    model = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[3.0, 4.0]]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    def run():
        model(torch.tensor([[0.6, 0.8]])).sum().backward()
        optimizer.step()

    rows = quietly(
        run,
        model,
        rules=[Rule("weight", "update", "ratio", above=0.09), Rule("weight", "update", "ratio", above=0.11)],
        **BOTH,
    )
    assert [json.loads(row["arguments"])["value"] for row in alerts(rows)] == [pytest.approx(0.1)]


def test_raise_stops_at_the_place(tmp_path):
    """The exception comes out of the training loop, before the optimizer has stepped; the alert is in the trace."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.weight.detach().clone()
    rule = Rule("weight", "grad", "norm", above=1, action="raise")
    path = tmp_path / "t.arrow"

    def run():
        with DispatchMonitor(model, path, rules=[rule], quiet=True, **BOTH):
            model(torch.full((1, 2), 100.0)).sum().backward()
            optimizer.step()

    with pytest.raises(AlertError, match=r"^grad of weight: norm is 141.4 \(rule: weight grad norm above 1\)$"):
        run()
    assert torch.equal(model.weight, before)
    assert len(alerts(rows_of(path))) == 1
    optimizer.step()
    assert not torch.equal(model.weight, before)


def with_nan_input(model, x):
    model(torch.tensor([1.0, torch.nan]))


def with_inf_output(model, x):
    model.forward = lambda x: x / 0
    model(x)


def with_inf_gradient(model, x):
    (model(x) * torch.inf).sum().backward()


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (with_nan_input, r"^input\[0\] of the model has 1 NaN$"),
        (with_inf_output, r"^output of the model has 3 Inf$"),
        (with_inf_gradient, r"^output of the model has 3 Inf$|^the gradient of .* has 3 Inf$"),
    ],
)
def test_on_nonfinite_raise(run, words, tmp_path):
    """`on_nonfinite="raise"` names the module, the place and how many there are, in forward and in backward."""
    model, x = nn.Sequential(nn.Identity()), torch.ones(3, requires_grad=True)

    def watched():
        with DispatchMonitor(model, tmp_path / "t.arrow", on_nonfinite="raise", quiet=True, record=("modules",)):
            run(model, x)

    with pytest.raises(NonFiniteError, match=words):
        watched()
    assert nn.Module.__call__.__module__ == "torch.nn.modules.module"


def test_on_nonfinite_warns_once():
    """However many modules it goes through."""
    model = nn.Sequential(nn.Identity(), nn.Identity())
    with pytest.warns(RuntimeWarning) as caught:
        record(lambda: model(torch.tensor([torch.inf])), model, on_nonfinite="warn", record=("modules",))
    assert [str(w.message) for w in caught] == ["dispatchmon: input[0] of the model has 1 Inf"]


def test_a_scaler_that_looks_for_its_scale_is_no_alarm():
    """Gradients that overflow under a GradScaler are its business; what the optimizer sees, and forward, still alarm."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120)

    def run():
        for _ in range(2):
            optimizer.zero_grad()
            scaler.scale(model(torch.full((1, 2), 1e9)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = record(run, model, on_nonfinite="raise", **BOTH)
    assert any(row["inf"] for row in rows if row["role"] == "raw_grad")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "a rule has one condition of above, below, nonfinite, jump; none was given"),
        ({"above": 1, "nonfinite": True}, "a rule has one condition of above, below, nonfinite, jump; above, nonfinite was given"),
        ({"above": 1, "role": "outputs"}, "a rule's role is 'outputs'; choose from input, output"),
        ({"above": 1, "statistic": "median"}, "a rule's statistic is 'median'; choose from min, max"),
        ({"above": 1, "statistic": "ratio"}, 'only an update has a ratio: give the rule role="update"'),
        ({"above": 1, "action": "stop"}, "a rule's action is 'stop'; choose from warn, raise"),
        ({"jump": 0.5}, "a rule's jump is 0.5: give how many times the running mean, above 1"),
    ],
)  # fmt: skip
def test_a_rule_that_cannot_be_meant(given, words):
    """It is refused when it is made."""
    with pytest.raises(SettingError) as caught:
        Rule(**given)
    assert str(caught.value).startswith(words)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rules": [Rule(nonfinite=True)]}, 'rules are about modules and parameters: put them into record, as record=("modules",)'),
        ({"rules": ["x above 1"], "record": "modules"}, "rules: 'x above 1' is no Rule"),
        ({"rules": [Rule(above=1)], "record": "modules", "stats": ()}, "rules need statistics, and stats is empty"),
        ({"record": "modules", "verify_values": True}, 'verify_values is about operators: put "ops" into record'),
        ({"update_bytes": -1}, "update_bytes is -1: give a number of bytes, 0 for no updates"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_meant(settings, words):
    """They are refused when the monitor is made."""
    with pytest.raises(SettingError) as caught:
        DispatchMonitor(nn.Linear(1, 1), **settings)
    assert str(caught.value).startswith(words)


@NEEDS_SAVINGS
def test_an_alert_and_a_hazard_in_one_batch():
    """Each keeps the event that caused it."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Identity())

    def run():
        x = torch.ones(1, 2, requires_grad=True)
        y = (x * 2).exp()
        y.data.mul_(2)  # what exp saved
        model(y).sum().backward()

    rows = quietly(run, model, rules=[Rule("0", "input", "norm", above=1)], record=("ops", "modules"))
    (alert,) = alerts(rows)
    assert next(r for r in rows if r["event"] == alert["cause_event"])["kind"] == "module"
    hazards = [row for row in rows if row["kind"] == "hazard"]
    assert hazards
    assert all(next(r for r in rows if r["event"] == h["cause_event"])["op"] == "aten.mul_.Tensor" for h in hazards)


def test_looking_at_modules_is_no_reading():
    """The audit finds the same with and without module events."""

    class Steals(nn.Module):
        def forward(self, x):
            return x.relu_().sum()

    model = nn.ModuleList([Steals(), nn.Identity()])

    @torch.no_grad()
    def run():
        x = torch.tensor([-1.0, 1.0])
        model[0](x)
        model[1](x + 1)

    found = [
        [(r["op"], r["role"], r["arg"]) for r in quietly(run, model, record=record_) if r["kind"] == "hazard"]
        for record_ in (("ops",), ("ops", "modules"))
    ]
    assert found[0] == found[1]
    assert found[0]
