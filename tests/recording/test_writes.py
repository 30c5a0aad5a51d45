"""What an operator writes: `mutation` and `written` come from its schema, lists and keywords included."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from recorded import events, only, record


def test_foreach_lists_have_a_row_for_each_tensor_before_and_after() -> None:
    """`_foreach_add_` returns nothing: the state after is read from its arguments, element by element."""
    tensors = [torch.tensor([1.0, 2.0]), torch.tensor([-3.0])]
    rows = record(lambda: torch._foreach_add_(tensors, 10.0))
    (event,) = events(rows, op="aten._foreach_add_.Scalar")
    seen = [(r["role"], r["arg"], r["written"], r["min"], r["max"]) for r in event]
    assert seen == [
        ("input", "self[0]", True, 1.0, 2.0),
        ("input", "self[1]", True, -3.0, -3.0),
        ("output", "self[0]", True, 11.0, 12.0),
        ("output", "self[1]", True, 7.0, 7.0),
    ]
    assert event[0]["mutation"] == "inplace"
    assert json.loads(event[0]["arguments"]) == {"scalar": 10.0}
    assert event[1]["arguments"] is None


def test_fused_adamw_writes_parameters_and_states() -> None:
    """`_fused_adamw_` writes parameters, moments and steps; the rows carry the state before and after."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)

    def run() -> None:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            before.append(model.weight.detach().clone())
            optimizer.step()
            after.append(model.weight.detach().clone())

    before: list[torch.Tensor] = []
    after: list[torch.Tensor] = []
    rows = record(run, model)
    first, second = events(rows, op="aten._fused_adamw_.default")
    for event, old, new in ((first, before[0], after[0]), (second, before[1], after[1])):
        weight = {r["role"]: r for r in event if r["arg"] == "self[0]"}
        assert weight["input"]["name"] == weight["output"]["name"] == "weight"
        assert (weight["input"]["min"], weight["output"]["min"]) == (old.min().item(), new.min().item())
        assert weight["output"]["version"] > weight["input"]["version"]
    assert {r["arg"].split("[")[0] for r in second if r["role"] == "output"} == {
        "self",
        "grads",
        "exp_avgs",
        "exp_avg_sqs",
    }
    names = {r["arg"]: r["name"] for r in second if r["role"] == "input"}
    assert names["grads[0]"] == "weight.grad"
    assert names["exp_avgs[1]"] == "bias.exp_avg"
    assert second[0]["phase"] == "optimizer"


@pytest.mark.parametrize(("call", "op", "mutation"), [
    (lambda x: x.relu_(), "aten.relu_.default", "inplace"),
    (lambda x: torch.relu(x), "aten.relu.default", "none"),
    (lambda x: torch.exp(x, out=x), "aten.exp.out", "out"),
    (lambda x: nn.functional.rrelu(x, training=True), "aten.rrelu_with_noise.default", "other"),
    (lambda x: torch.native_batch_norm(x, None, None, torch.zeros(4), torch.ones(4), True, 0.1, 1e-5),
     "aten.native_batch_norm.default", "undeclared"),
    (lambda x: torch.native_batch_norm(x, None, None, torch.zeros(4), torch.ones(4), False, 0.1, 1e-5),
     "aten.native_batch_norm.default", "none"),
    (lambda x: x.add_(1), "aten.add_.Tensor", "inplace"),
])  # fmt: skip
def test_mutation_word(call, op, mutation) -> None:
    """Each kind of write has its word."""
    (event,) = events(record(lambda: call(torch.rand(3, 4))), op=op)
    assert event[0]["mutation"] == mutation


def test_running_statistics_are_written_only_while_training() -> None:
    """Batch norm's schema hides that it writes running statistics; in eval mode it does not."""
    model, x = nn.BatchNorm1d(3), torch.randn(4, 3)
    (train,) = events(record(lambda: model.train()(x), model), op="aten.native_batch_norm.default")
    written = [(r["arg"], r["name"]) for r in train if r["role"] == "output" and r["written"]]
    assert written == [("running_mean", "running_mean"), ("running_var", "running_var")]
    assert only(train, role="output", arg="running_mean")["mean"] == pytest.approx(model.running_mean.mean().item())
    (evaluated,) = events(record(lambda: model.eval()(x), model), op="aten.native_batch_norm.default")
    assert not any(r["written"] for r in evaluated)


def test_arguments_are_json_by_name_with_non_finite_numbers_as_strings() -> None:
    """Scalars, dims and dtypes keep their own kind; infinities and NaN are strings."""
    x = torch.rand(2, 3)

    def run() -> None:
        x.add(1)
        x.add(1.0)
        x.masked_fill(x > 2, float("-inf"))
        x.sum(dim=(0, 1), keepdim=True, dtype=torch.float64)

    rows = record(run)
    assert [json.loads(e[0]["arguments"]) for e in events(rows, op="aten.add.Tensor")] == [{"other": 1}, {"other": 1.0}]
    assert [type(json.loads(e[0]["arguments"])["other"]) for e in events(rows, op="aten.add.Tensor")] == [int, float]
    (fill,) = events(rows, op="aten.masked_fill.Scalar")
    assert json.loads(fill[0]["arguments"]) == {"value": "-inf"}
    (total,) = events(rows, op="aten.sum.dim_IntList")
    assert json.loads(total[0]["arguments"]) == {"dim": [0, 1], "keepdim": True, "dtype": "float64"}


def test_an_event_without_tensors_has_one_row() -> None:
    """Its tensor columns are null; the event itself is there."""
    library = torch.library.Library("dispatchmon_test", "FRAGMENT")
    library.define("nothing(int n) -> int")
    library.impl("nothing", lambda n: n + 1, "CompositeExplicitAutograd")
    (event,) = events(record(lambda: torch.ops.dispatchmon_test.nothing(3)), op="dispatchmon_test.nothing.default")
    (row,) = event
    assert json.loads(row["arguments"]) == {"n": 3}
    assert [row[c] for c in ("role", "arg", "storage", "dtype", "shape", "min", "nan")] == [None] * 7
    assert row["written"] is False


def test_an_operator_that_raises_leaves_its_inputs_and_no_duration() -> None:
    """The rows of what went in are there, marked by a null duration."""

    def run() -> None:
        with pytest.raises(RuntimeError):
            torch.ones(1).expand(3).add_(torch.arange(3.0))

    (event,) = events(record(run), op="aten.add_.Tensor", kind="op")
    assert [(r["role"], r["arg"]) for r in event] == [("input", "self"), ("input", "other")]
    assert event[0]["duration_ns"] is None
