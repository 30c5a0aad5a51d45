"""What happens to parameters in an optimizer's step: values, gradients at both ends, updates, states."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from dispatchmon import DispatchMonitor, open_trace
from recorded import Row, events, numbers, only, record, rows_of
from reference import reference

PARAMETERS = {"record": ("parameters",)}
X = torch.randn(8, 5, generator=torch.Generator().manual_seed(2))


def network(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.ReLU(True), nn.Linear(4, 1)).to(dtype)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, clip: float | None = None) -> None:
    optimizer.zero_grad()
    model(X.to(next(model.parameters()).dtype)).square().mean().backward()
    if clip is not None:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()


OPTIMIZERS: dict[str, Any] = {
    "SGD": lambda p, **way: torch.optim.SGD(p, lr=0.1, momentum=0.9, **way),
    "AdamW": lambda p, **way: torch.optim.AdamW(p, lr=0.1, **way),
}
WAYS = {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
STATES = {"SGD": {"momentum_buffer"}, "AdamW": {"exp_avg", "exp_avg_sq"}}


def truth(name: str, way: str, steps: int) -> dict[tuple[int, str, str], torch.Tensor]:
    """(step, parameter, role or state) -> tensor, by torch alone, with clones."""
    model = network()
    optimizer = OPTIMIZERS[name](model.parameters(), **WAYS[way])
    found = {}
    for i in range(steps):
        optimizer.zero_grad()
        model(X).square().mean().backward()
        named = dict(model.named_parameters())
        found |= {(i, n, "raw_grad"): p.grad.clone() for n, p in named.items()}
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        found |= {(i, n, "grad"): p.grad.clone() for n, p in named.items()}
        found |= {(i, n, "value"): p.detach().clone() for n, p in named.items()}
        optimizer.step()
        found |= {(i, n, "update"): p.detach() - found[i, n, "value"] for n, p in named.items()}
        found |= {
            (i, n, key): value.clone()
            for n, p in named.items() for key, value in optimizer.state[p].items() if key in STATES[name]
        }  # fmt: skip
    return found


def base(row: Row) -> str:
    """The parameter that a row is about."""
    return row["name"].removesuffix(f".{row['arg']}").removesuffix(".grad")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("record_", [("parameters",), ("ops", "modules", "parameters")], ids="+".join)
def test_every_number_of_a_step(name, way, record_):
    """Value, gradient before and after clipping, update and states are those that torch has, in a loop, foreach and fused."""
    model = network()
    optimizer = OPTIMIZERS[name](model.parameters(), **WAYS[way])
    rows = record(lambda: [step(model, optimizer, clip=0.01) for _ in range(3)], model, record=record_)
    found = {
        (r["step"], base(r), r["arg"]): numbers(r) for r in rows if r["kind"] == "parameter"
    }  # fmt: skip
    expected = truth(name, way, 3)
    assert found.keys() == expected.keys()
    for key, tensor in expected.items():
        assert found[key] == pytest.approx(reference(tensor), rel=1e-6, abs=1e-12), key


def test_training_is_the_same_to_the_bit():
    """Parameters and states after five steps, with and without the monitor."""
    found = []
    for monitored in (False, True):
        model = network()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

        def run(model=model, optimizer=optimizer):
            for _ in range(5):
                step(model, optimizer, clip=0.01)

        if monitored:
            record(run, model, record=("modules", "parameters"))
        else:
            run()
        found.append([*model.parameters(), *(v for s in optimizer.state.values() for v in s.values())])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_where_a_row_belongs():
    """The owner is the module, the optimizer's class the operator; backward rows are of phase backward."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = [r for r in record(lambda: step(model, optimizer), model, **PARAMETERS) if r["name"].startswith("2.weight")]
    assert [(r["role"], r["module"], r["op"], r["phase"], r["name"]) for r in rows] == [
        ("raw_grad", "2", "backward", "backward", "2.weight.grad"),
        ("value", "2", "SGD", "optimizer", "2.weight"),
        ("grad", "2", "SGD", "optimizer", "2.weight.grad"),
        ("update", "2", "SGD", "optimizer", "2.weight"),
    ]
    assert all(r["kind"] == "parameter" and r["mutation"] == "none" and r["module_call"] is None for r in rows)


def test_no_gradient_is_no_row():
    """A frozen parameter and one that the loss does not reach have none; others do."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused, self.frozen = nn.Linear(5, 1), nn.Linear(5, 1), nn.Linear(5, 1)
            self.frozen.requires_grad_(False)

        def forward(self, x):
            return self.used(x) + self.frozen(x)

    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = record(lambda: [step(model, optimizer) for _ in range(2)], model, **PARAMETERS)
    assert {row["module"] for row in rows} == {"used"}


def test_a_tied_parameter_is_one():
    """One row per role for a parameter under two names, under the first of them, with the sum of both uses as gradient."""
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(2, 3)
    model(x).sum().backward()
    expected = model[0].weight.grad.norm().item()
    model.zero_grad()

    def run():
        model(x).sum().backward()
        optimizer.step()

    rows = record(run, model, **PARAMETERS)
    assert [(r["role"], r["name"]) for r in rows] == [
        ("raw_grad", "0.weight.grad"), ("value", "0.weight"), ("grad", "0.weight.grad"), ("update", "0.weight")]  # fmt: skip
    assert rows[0]["norm"] == pytest.approx(expected)


def test_each_backward_pass_leaves_what_has_accumulated():
    """Over two micro batches the second raw gradient is the sum, with the micro step it came in."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def run():
        for _ in range(2):
            model(X).sum().backward()
        optimizer.step()

    rows = [r for r in record(run, model, **PARAMETERS) if r["role"] == "raw_grad" and r["name"] == "2.bias.grad"]
    assert [(r["micro_step"], r["mean"]) for r in rows] == [(0, 8), (1, 16)]


def test_gradients_that_a_backward_pass_did_not_touch_have_no_row():
    """Two models, one monitor around both: the backward pass of one says nothing of the other."""
    both = nn.ModuleList([network(), network()])

    def run():
        for model in both:
            model(X).sum().backward()

    rows = record(run, both, **PARAMETERS)
    assert len(rows) == 8
    assert len({row["name"] for row in rows}) == 8


def test_a_hook_that_clips_comes_before_us():
    """A step pre-hook of the optimizer's own changes the gradient: `grad` is what the optimizer sees after it."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def halve(optimizer, args, kwargs):
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.grad.mul_(0.5)

    optimizer.register_step_pre_hook(halve)
    rows = record(lambda: step(model, optimizer), model, **PARAMETERS)
    raw, seen = (only(rows, role=role, name="0.weight.grad")["norm"] for role in ("raw_grad", "grad"))
    assert seen == pytest.approx(raw / 2)


@pytest.mark.parametrize("fused", [False, True])
def test_under_a_gradient_scaler(fused):
    """The raw gradient is scaled, that of the optimizer is not, also where the fused kernel unscales it; an Inf skips the step."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def run():
        for factor in (1.0, float("inf"), 1.0):
            optimizer.zero_grad()
            scaler.scale(model(X).square().mean() * factor).backward()
            scaler.step(optimizer)
            scaler.update()

    rows = record(run, model, **PARAMETERS)
    steps = [r for r in rows if r["name"] == "0.weight.grad"]
    assert [r["role"] for r in steps[:2]] == ["raw_grad", "grad"]
    assert steps[0]["norm"] == pytest.approx(steps[1]["norm"] * 1024, rel=1e-5)
    assert any(r["nan"] or r["inf"] for r in rows if r["role"] == "raw_grad")


def test_a_closure():
    """LBFGS computes its gradients inside the step: value before all of it, gradient as it was last, update over all of it."""
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    before = [p.detach().clone() for p in model.parameters()]

    def closure():
        optimizer.zero_grad()
        loss = model(X).square().mean()
        loss.backward()
        return loss

    rows = record(lambda: optimizer.step(closure), model, **PARAMETERS)
    weight = model[0].weight
    assert only(rows, role="value", name="0.weight")["norm"] == pytest.approx(before[0].norm().item())
    assert only(rows, role="grad", name="0.weight.grad")["norm"] == pytest.approx(weight.grad.norm().item())
    expected = (weight.detach() - before[0]).norm().item()
    assert only(rows, role="update", name="0.weight")["norm"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_updates_in_other_precisions(dtype):
    """The difference of two bfloat16 values is taken in float32, so that it is not rounded again."""
    model, alone = network(dtype), network(dtype)
    step(alone, torch.optim.SGD(alone.parameters(), lr=0.1))
    before = network(dtype)[0].weight.detach().double()
    rows = record(lambda: step(model, torch.optim.SGD(model.parameters(), lr=0.1)), model, **PARAMETERS)
    expected = reference(alone[0].weight.detach().double() - before)
    assert numbers(only(rows, role="update", name="0.weight")) == pytest.approx(expected, rel=1e-6)


def test_updates_take_turns_when_there_is_little_memory(tmp_path):
    """With room for one layer, over the steps each parameter that fits is measured; one that never fits is counted."""
    model = nn.Sequential(nn.Linear(5, 4, bias=False), nn.Linear(4, 5, bias=False), nn.Linear(5, 50, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    path = tmp_path / "t.arrow"
    with DispatchMonitor(model, path, update_bytes=100, quiet=True, **PARAMETERS) as monitor:
        for _ in range(4):
            optimizer.zero_grad()
            model(X).square().mean().backward()
            optimizer.step()
        buffers = monitor._recording.parameters.updates.buffers.values()
        assert sum(b.numel() * b.itemsize for b in buffers) <= 100
    updates = [(r["step"], r["name"]) for r in rows_of(path) if r["role"] == "update"]
    assert updates == [(0, "0.weight"), (1, "1.weight"), (2, "0.weight"), (3, "1.weight")]
    left_out = open_trace(path).files[0].skipped["updates of parameters that did not fit into update_bytes"]
    assert left_out == 4 * 3 - 4


def test_no_updates_when_not_wanted():
    """update_bytes=0 copies nothing and leaves no update rows; all else is there."""
    model = network()
    rows = record(lambda: step(model, torch.optim.SGD(model.parameters(), lr=0.1)), model, update_bytes=0, **PARAMETERS)
    assert {r["role"] for r in rows} == {"raw_grad", "value", "grad"}


def test_without_a_model():
    """The names come from what is called; a parameter of nobody is named by its place in the optimizer."""
    model, loose = network(), torch.ones(5, requires_grad=True)
    optimizer = torch.optim.SGD([*model.parameters(), loose], lr=0.1)

    def run():
        model(X * loose).sum().backward()
        optimizer.step()

    rows = record(run, **PARAMETERS)
    assert {r["name"] for r in rows if r["role"] == "value"} == {
        "0.weight", "0.bias", "2.weight", "2.bias", "param_groups[0].params[4]"}  # fmt: skip


def test_targets():
    """`modules` and `module_types` choose parameters by the module that owns them or one around it."""
    model = nn.ModuleDict({"enc": network(), "dec": nn.Linear(1, 1)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def run():
        model["dec"](model["enc"](X)).sum().backward()
        optimizer.step()

    def owners(**settings: Any) -> set[str]:
        return {r["module"] for r in record(run, model, **PARAMETERS, **settings)}

    assert owners() == {"enc.0", "enc.2", "dec"}
    assert owners(modules="enc") == {"enc.0", "enc.2"}
    assert owners(module_types="Sequential") == {"enc.0", "enc.2"}
    assert owners(modules="dec", module_types="Linear") == {"dec"}


def test_sparse_gradients():
    """An embedding with sparse gradients is recorded like any other."""
    model = nn.Embedding(10, 3, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def run():
        model(torch.tensor([1, 1, 4])).sum().backward()
        optimizer.step()

    rows = record(run, model, **PARAMETERS)
    assert [r["role"] for r in rows] == ["raw_grad", "value", "grad", "update"]
    assert only(rows, role="update")["norm"] == pytest.approx((3 * 0.2**2 + 3 * 0.1**2) ** 0.5, rel=1e-5)


def test_a_step_that_raises_keeps_nothing(tmp_path):
    """An optimizer that raises is not stopped in doing so; what follows is recorded as ever, once though `step` calls `super`."""
    model = network()

    class Raises(torch.optim.SGD):
        fails = True

        def step(self, closure=None):
            if Raises.fails:
                raise ValueError("no")
            return super().step(closure)

    optimizer = Raises(model.parameters(), lr=0.1)

    def run():
        with pytest.raises(ValueError, match="no"):
            step(model, optimizer)
        Raises.fails = False
        step(model, optimizer)

    rows = record(run, model, **PARAMETERS)
    assert len([r for r in rows if r["role"] == "value"]) == 8
    assert len([r for r in rows if r["role"] == "update"]) == 4
    assert not optimizer._optimizer_step_pre_hooks


def test_events_are_two_per_parameter_and_step():
    """Before and after the optimizer, and one after backward."""
    model = network()
    rows = record(lambda: step(model, torch.optim.AdamW(model.parameters())), model, **PARAMETERS)
    assert [[r["role"] for r in e] for e in events(rows) if e[0]["module"] == "0" and e[0]["shape"] == [4, 5]] == [
        ["raw_grad"], ["value", "grad"], ["state", "state", "update"]]  # fmt: skip
