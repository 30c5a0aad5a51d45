"""Where a step ends: by `monitor.step()`, by the first optimizer, or by the outermost call of the model."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from dispatchmon import DispatchMonitor
from recorded import Row, events, record, rows_of


def model_and_optimizer() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    return model, torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)


def places(rows: list[Row], op: str) -> list[tuple[int, int, str]]:
    return [(e[0]["step"], e[0]["micro_step"], e[0]["phase"]) for e in events(rows, op=op)]


def test_a_step_ends_when_the_optimizer_has_stepped() -> None:
    """Forward, backward and optimizer of one iteration share a step."""
    model, optimizer = model_and_optimizer()

    def run() -> None:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()

    rows = record(run, model)
    assert places(rows, "aten.relu.default") == [(0, 0, "forward"), (1, 0, "forward"), (2, 0, "forward")]
    assert places(rows, "aten.threshold_backward.default") == [
        (0, 0, "backward"),
        (1, 0, "backward"),
        (2, 0, "backward"),
    ]
    assert places(rows, "aten._foreach_add_.List") == [(0, 0, "optimizer"), (1, 0, "optimizer"), (2, 0, "optimizer")]


def test_gradient_accumulation_gives_micro_steps() -> None:
    """Outermost calls inside a step are counted, also before the optimizer has ever stepped; the loss belongs to its call."""
    model, optimizer = model_and_optimizer()

    def run() -> None:
        for _ in range(2):
            for _ in range(3):
                model(torch.ones(2, 3)).sum().backward()
            optimizer.step()

    rows = record(run, model)
    expected = [(s, m, "forward") for s in range(2) for m in range(3)]
    assert places(rows, "aten.relu.default") == expected
    assert places(rows, "aten.sum.default") == expected
    assert places(rows, "aten.threshold_backward.default") == [(s, m, "backward") for s, m, _ in expected]


def test_without_an_optimizer_a_call_of_the_model_is_a_step(tmp_path: Path) -> None:
    """An evaluation loop: what follows a call belongs to its step."""
    model, _ = model_and_optimizer()

    def run() -> None:
        with torch.no_grad():
            for _ in range(3):
                model(torch.ones(2, 3)).argmax()

    rows = record(run, model)
    assert places(rows, "aten.relu.default") == [(0, 0, "forward"), (1, 0, "forward"), (2, 0, "forward")]
    assert [p[0] for p in places(rows, "aten.argmax.default")] == [0, 1, 2]


def test_monitor_step_takes_over(tmp_path: Path) -> None:
    """Once `monitor.step()` is called, the optimizer ends no step."""
    model, optimizer = model_and_optimizer()
    with DispatchMonitor(model, tmp_path / "t.arrow", quiet=True) as monitor:
        monitor.step()
        for _ in range(2):
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
            optimizer.step()
            assert monitor.current_step in (1, 2)
            monitor.step()
    rows = rows_of(tmp_path / "t.arrow")
    assert [p[0] for p in places(rows, "aten._foreach_add_.List")] == [1, 1, 2, 2]


def test_of_two_optimizers_the_first_seen_ends_steps() -> None:
    """A second optimizer does not end a step of its own."""
    model, first = model_and_optimizer()
    second = torch.optim.SGD(model.parameters(), lr=0.1)

    def run() -> None:
        for _ in range(2):
            model(torch.ones(2, 3)).sum().backward()
            first.step()
            model(torch.ones(2, 3)).sum().backward()
            second.step()

    assert [p[0] for p in places(record(run, model), "aten.relu.default")] == [0, 1, 1, 2]


def test_a_closure_runs_forward_and_backward_inside_the_optimizer() -> None:
    """LBFGS: what its closure runs has the phases of ordinary training, what it does itself is `optimizer`."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 3)).square().mean()
        loss.backward()
        return loss

    def run() -> None:
        optimizer.step(closure)
        optimizer.step(closure)

    rows = record(run, model)
    assert {p[2] for p in places(rows, "aten.addmm.default")} == {"forward"}
    assert {p[2] for p in places(rows, "aten.mean.default")} == {"forward"}
    assert "optimizer" in {p[2] for p in places(rows, "aten.dot.default")} | {
        p[2] for p in places(rows, "aten.abs.default")
    }
    assert {p[0] for p in places(rows, "aten.addmm.default")} == {0, 1}


def test_an_exception_inside_step_leaves_the_optimizer_phase() -> None:
    """Torch calls no hook when `step` raises; the next operator is not the optimizer's, and the step is not over."""

    class Failing(torch.optim.SGD):
        fail = True

        @torch.no_grad()
        def step(self, closure=None):  # type: ignore[no-untyped-def]
            torch.zeros(1).sin()
            if self.fail:
                raise ValueError("failed")

    model = nn.Linear(3, 3)
    optimizer = Failing(model.parameters(), lr=0.1)

    def run() -> None:
        try:
            optimizer.step()
        except ValueError:
            pass
        torch.zeros(1).cos()
        optimizer.fail = False
        optimizer.step()
        torch.zeros(1).cos()

    rows = record(run, model)
    assert places(rows, "aten.sin.default") == [(0, 0, "optimizer"), (0, 0, "optimizer")]
    assert places(rows, "aten.cos.default") == [(0, 0, "forward"), (1, 0, "forward")]


def test_step_pattern_records_these_steps_only_and_knows_what_changed_meanwhile() -> None:
    """Steps outside `steps` leave no rows; a weight trained meanwhile is a new version with its own numbers."""
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, foreach=False)
    truth: list[float] = []

    def run() -> None:
        for _ in range(5):
            truth.append(model.weight.max().item())
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()

    rows = record(run, model, steps="1::3")
    assert {r["step"] for r in rows} == {1, 4}
    inputs = [
        e[0] for e in events(rows, op="aten.t.default") if e[0]["name"] == "weight" and e[0]["phase"] == "forward"
    ]
    assert [r["max"] for r in inputs] == [truth[1], truth[4]]
    assert inputs[1]["version"] > inputs[0]["version"]
    assert {r["step"] for r in record(run, model, steps=lambda step: step == 2)} == {2}


def train_and_evaluate(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(2):
        model.train()
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            model(torch.zeros(2, 3)).argmax()


def test_training_and_evaluation_are_told_apart_by_a_column() -> None:
    """Everything is recorded; `training` says which mode the module was in, in backward too, and is null outside."""
    model, optimizer = model_and_optimizer()
    rows = record(lambda: train_and_evaluate(model, optimizer), model)
    assert [e[0]["training"] for e in events(rows, op="aten.relu.default")] == [True, False, True, False]
    assert {e[0]["training"] for e in events(rows, op="aten.threshold_backward.default")} == {True}
    assert {e[0]["training"] for e in events(rows, op="aten.argmax.default")} == {None}
    assert places(rows, "aten.relu.default") == [(0, 0, "forward"), (1, 0, "forward"), (1, 1, "forward"), (2, 0, "forward")]


def test_only_training_or_only_evaluation() -> None:
    """`training=True` leaves evaluation out until the model is called in training mode again, and says so."""
    model, optimizer = model_and_optimizer()
    rows = record(lambda: train_and_evaluate(model, optimizer), model.train(), training=True)
    assert {e[0]["training"] for e in events(rows, op="aten.relu.default")} == {True}
    assert events(rows, op="aten.argmax.default") == []
    assert len(events(rows, op="aten._foreach_add_.List")) == 2
    rows = record(lambda: train_and_evaluate(model, optimizer), model.train(), training=False)
    assert {e[0]["training"] for e in events(rows, op="aten.relu.default")} == {False}
    assert len(events(rows, op="aten.argmax.default")) == 2
    assert events(rows, op="aten._foreach_add_.List") == []


def test_caller_is_the_users_line_that_called_the_model() -> None:
    """Inside a library the source is the library's line; `caller` is the line of the script."""
    from torch.optim import SGD  # noqa: F401

    model = nn.TransformerEncoderLayer(4, 1, 4, batch_first=True)

    def run() -> None:
        model(torch.ones(1, 2, 4)).sum().backward()

    rows = record(run, model)
    line = run.__code__.co_firstlineno + 1
    expected = {f"test_steps.py:{line} in run"}
    assert {r["caller"] for r in rows if r["module"] is not None and not (r["name"] or "").endswith(".grad")} - {None} == expected
    assert {r["caller"] for r in rows if r["module"] is None} == {None}


def test_a_step_that_grad_scaler_skips_ends_none() -> None:
    """The optimizer was not called: what follows is one more micro step of the same step."""
    torch.manual_seed(3)  # not every unit is dead, so that the gradient overflows
    model, optimizer = model_and_optimizer()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

    def run() -> None:
        for factor in (1.0, float("inf"), 1.0):
            scaler.scale(model(torch.ones(2, 3)).sum() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    assert places(record(run, model), "aten.relu.default") == [(0, 0, "forward"), (1, 0, "forward"), (1, 1, "forward")]
