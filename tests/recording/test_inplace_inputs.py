"""The bug this project exists for: the input of an operator that writes over it, as it was before."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from recorded import events, numbers, only, record


def linear_relu(inplace: bool) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(inplace=inplace))


def rows_of_relu(inplace: bool, op: str) -> list[dict]:
    model = linear_relu(inplace)
    x = torch.randn(32, 8, generator=torch.Generator().manual_seed(1))
    (rows,) = events(record(lambda: model(x), model), op=op)
    return rows


def test_inplace_relu_has_the_input_of_the_ordinary_one() -> None:
    """Every statistic of the in-place ReLU's input equals that of `inplace=False`."""
    inplace, ordinary = rows_of_relu(True, "aten.relu_.default"), rows_of_relu(False, "aten.relu.default")
    assert numbers(only(inplace, role="input")) == numbers(only(ordinary, role="input"))


def test_inplace_relu_input_is_the_linear_output_computed_by_hand() -> None:
    """The recorded input is what the linear layer computes, in numpy and float64."""
    model = linear_relu(True)
    x = torch.randn(32, 8, generator=torch.Generator().manual_seed(1))
    weight, bias = (p.detach().double().numpy() for p in model[0].parameters())
    expected = x.double().numpy() @ weight.T + bias
    row = only(rows_of_relu(True, "aten.relu_.default"), role="input")
    assert expected.min() < -1
    assert row["min"] == pytest.approx(expected.min(), rel=1e-6)
    assert row["max"] == pytest.approx(expected.max(), rel=1e-6)
    assert row["mean"] == pytest.approx(expected.mean(), rel=1e-5)
    assert row["std"] == pytest.approx(expected.std(), rel=1e-6)
    assert row["norm"] == pytest.approx(np.linalg.norm(expected), rel=1e-6)


def test_inplace_relu_output_differs_from_its_input() -> None:
    """The output row is the state after: its minimum is exactly 0, and it is the next version of the same storage."""
    rows = rows_of_relu(True, "aten.relu_.default")
    before, after = only(rows, role="input"), only(rows, role="output")
    assert before["min"] < 0
    assert after["min"] == 0.0
    assert after["zero"] > 0
    assert (after["storage"], after["version"]) == (before["storage"], before["version"] + 1)
    assert before["written"] and after["written"]
    assert before["mutation"] == "inplace"


def test_out_argument_that_is_an_input_keeps_its_own_values() -> None:
    """`torch.add(x, y, out=x)`: x before, y, and x after each have their true statistics."""
    x, y = torch.tensor([1.0, -2.0, 3.0]), torch.tensor([10.0, 20.0, -5.0])
    rows = record(lambda: torch.add(x, y, out=x))
    (add,) = events(rows, op="aten.add.out")
    inputs = {row["arg"]: row for row in add if row["role"] == "input"}
    assert (inputs["self"]["min"], inputs["self"]["max"], inputs["self"]["mean"]) == (-2.0, 3.0, pytest.approx(2 / 3))
    assert (inputs["other"]["min"], inputs["other"]["max"]) == (-5.0, 20.0)
    assert (inputs["out"]["min"], inputs["out"]["written"]) == (-2.0, True)
    after = only(add, role="output")
    assert (after["arg"], after["min"], after["max"]) == ("out", -2.0, 18.0)
    assert add[0]["mutation"] == "out"


def test_linear_gives_torchs_own_numbers() -> None:
    """An ordinary linear layer's output statistics are those that torch computes from the output."""
    torch.manual_seed(3)
    model, x = nn.Linear(5, 7), torch.randn(11, 5)
    rows = record(lambda: model(x), model)
    (addmm,) = events(rows, op="aten.addmm.default")
    output = model(x).detach().double()
    row = only(addmm, role="output")
    assert row["min"] == output.min().item()
    assert row["max"] == output.max().item()
    assert row["mean"] == pytest.approx(output.mean().item(), rel=1e-6)
    assert row["std"] == pytest.approx(output.std(correction=0).item(), rel=1e-6)
    assert row["norm"] == pytest.approx(output.norm().item(), rel=1e-6)
    assert (row["nan"], row["inf"], row["posinf"], row["zero"]) == (0, 0, 0, 0)
    assert (row["shape"], row["stride"], row["dtype"], row["device"]) == ([11, 7], [7, 1], "float32", "cpu")
    assert row["module"] == ""


@pytest.mark.parametrize("call", [
    lambda x: x.mul_(2), lambda x: x[0].fill_(7), lambda x: x.t().add_(1), lambda x: x.detach().zero_(), lambda x: x.data.neg_(),
])  # fmt: skip
def test_a_write_through_any_view_makes_remembered_statistics_stale(call) -> None:
    """After a write, the next reader's input row shows the new values, not the remembered ones."""
    x = torch.arange(12.0).reshape(3, 4) + 1

    def run() -> None:
        x.abs()
        call(x)
        x.exp()

    rows = record(run)
    (exp,) = events(rows, op="aten.exp.default")
    row, truth = only(exp, role="input"), x.double()
    assert (row["min"], row["max"]) == (truth.min().item(), truth.max().item())
    (absolute,) = events(rows, op="aten.abs.default")
    assert only(absolute, role="input")["version"] < row["version"]
