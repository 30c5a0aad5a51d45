"""What goes into a module and comes out: one test for each thing that the project was asked for, and the traps."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.profiler import profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from dispatchmon import DispatchMonitor, SettingError, open_trace
from recorded import STATISTICS, Row, events, numbers, only, record, rows_of
from reference import reference

MODULES = {"record": ("modules",)}


def named(rows: list[Row], module: str, role: str) -> list[Row]:
    return [row for row in rows if row["module"] == module and row["role"] == role]


def network(inplace: bool) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(inplace=inplace), nn.Conv2d(4, 2, 4), nn.Flatten())


def train(model: nn.Module, x: torch.Tensor) -> Callable[[], None]:
    return lambda: model(x).square().sum().backward()


IMAGES = torch.randn(2, 1, 6, 6, generator=torch.Generator().manual_seed(1))


# ----------------------------------------------------------------------------------------------------- the ten items
@pytest.mark.parametrize("record_", [("modules",), ("ops", "modules")], ids="+".join)
def test_1_inplace_relu_input_equals_that_of_an_ordinary_one(record_):
    """Every statistic of the input of an in-place ReLU equals that with inplace=False, also with a NaN in it."""
    images = IMAGES.clone()
    images[1, 0, 0, 0] = torch.nan
    inputs = []
    for inplace in (True, False):
        model = network(inplace)
        inputs.append(
            only(record(train(model, images), model, record=record_), kind="module", module="1", role="input")
        )
    assert numbers(inputs[0]) == numbers(inputs[1])
    assert inputs[0]["min"] < 0
    assert inputs[0]["nan"] > 0


def test_2_input_and_output_of_an_inplace_relu_differ():
    """Its smallest input is negative, its smallest output is 0, and both are one memory at two times."""
    model = network(True)
    rows = record(train(model, IMAGES), model, **MODULES)
    before, after = only(rows, module="1", role="input"), only(rows, module="1", role="output")
    assert before["min"] < 0 == after["min"]
    assert before["storage"] == after["storage"]
    assert before["version"] < after["version"]


def test_3_linear_equals_what_torch_computes():
    """Input, output and both gradients of nn.Linear have the statistics that torch computes without the monitor."""
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    x = torch.randn(4, 5, requires_grad=True)
    y = model(x)
    y.retain_grad()
    y.square().sum().backward()
    assert x.grad is not None
    expected = {"input": x, "output": y, "grad_input": x.grad.clone(), "grad_output": y.grad}
    x.grad = None
    rows = record(train(model, x), model, **MODULES)
    assert {row["role"] for row in rows} == set(expected)
    for role, tensor in expected.items():
        assert numbers(only(rows, role=role)) == pytest.approx(reference(tensor), rel=1e-12), role


def test_4_structure_alone():
    """With stats=() every module has the shape and dtype of its inputs and outputs, and no statistics."""
    model = network(True).double()
    rows = record(train(model, IMAGES.double()), model, stats=(), **MODULES)
    shapes = {(r["module"], r["role"]): (r["shape"], r["dtype"]) for r in rows if not r["role"].startswith("grad")}
    image, small = [2, 4, 4, 4], [2, 2, 1, 1]
    assert shapes == {
        ("", "input"): ([2, 1, 6, 6], "float64"), ("", "output"): ([2, 2], "float64"),
        ("0", "input"): ([2, 1, 6, 6], "float64"), ("0", "output"): (image, "float64"),
        ("1", "input"): (image, "float64"), ("1", "output"): (image, "float64"),
        ("2", "input"): (image, "float64"), ("2", "output"): (small, "float64"),
        ("3", "input"): (small, "float64"), ("3", "output"): ([2, 2], "float64"),
    }  # fmt: skip
    assert all(row[name] is None for row in rows for name in STATISTICS)


def hook_tables(model: nn.Module) -> list[Any]:
    """Every table of hooks that torch keeps for modules and for this model."""
    mine = [v for m in model.modules() for k, v in sorted(vars(m).items()) if "hook" in k]
    return mine + [
        v for k, v in sorted(vars(torch_module).items()) if k.startswith("_global_") and hasattr(v, "values")
    ]


def test_5_backward_alone_registers_no_forward_hook(tmp_path):
    """With phases=("backward",) no hook table of the model or of torch has an entry, and forward measures nothing."""
    model = network(True)
    with DispatchMonitor(model, tmp_path / "t.arrow", phases=("backward",), quiet=True, **MODULES) as monitor:
        output = model(IMAGES)
        assert not any(hook_tables(model))
        assert monitor._recording.statistics.next == 0
        output.square().sum().backward()
        assert not any(hook_tables(model))
    rows = rows_of(tmp_path / "t.arrow")
    assert {row["role"] for row in rows} == {"grad_input", "grad_output"}
    assert {row["phase"] for row in rows} == {"backward"}


def test_6_several_inputs_one_of_which_is_written():
    """torch.add(x, y, out=x): each input has its own numbers from before, and the output the sum."""

    class Add(nn.Module):
        def forward(self, x, y, *, scale):
            return torch.add(x, y, out=x).mul_(scale)

    x, y, scale = torch.tensor([1.0, -5.0]), torch.tensor([10.0, 20.0]), torch.tensor(2.0)
    with torch.no_grad():
        rows = record(lambda: Add()(x, y, scale=scale), **MODULES)
    seen = {row["arg"]: (row["min"], row["max"]) for row in rows}
    assert seen == {"input[0]": (-5, 1), "input[1]": (10, 20), "kwargs.scale": (2, 2), "output": (22, 30)}


def test_7_training_only():
    """With training=True a call under eval() leaves nothing, and one under train() does."""
    model = network(True)

    def run():
        for mode in (False, True):
            model.train(mode)(IMAGES)

    assert record(run, model, training=True, **MODULES)
    assert all(row["training"] for row in record(run, model, training=True, **MODULES))
    model.eval()
    assert record(lambda: model(IMAGES), model, training=True, **MODULES) == []


def test_8_micro_batches():
    """Inputs, outputs and gradients of one call carry the same micro_step and module_call, also if backward comes late."""
    model = network(True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def run():
        for _ in range(2):
            losses = [model(IMAGES * (i + 1)).sum() for i in range(3)]
            for loss in losses:
                loss.backward()
            optimizer.step()

    rows = [row for row in record(run, model, **MODULES) if row["module"] == "2"]
    calls = {(r["step"], r["micro_step"], r["module_call"]): set() for r in rows}
    assert list(calls) == [(step, micro, micro) for step in range(2) for micro in range(3)]
    for row in rows:
        calls[row["step"], row["micro_step"], row["module_call"]].add(row["role"])
    assert all(roles == {"input", "output", "grad_input", "grad_output"} for roles in calls.values())


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.region = nn.Sequential(nn.Linear(3, 3), nn.ReLU(True), nn.Linear(3, 3))
        self.reentrant = reentrant

    def forward(self, x):
        return checkpoint(self.region, self.first(x), use_reentrant=self.reentrant).sum()


@pytest.mark.parametrize("reentrant", [False, True], ids=["not reentrant", "reentrant"])
@pytest.mark.parametrize("record_", [("modules",), ("ops", "modules")], ids="+".join)
def test_9_recomputation_is_not_a_second_forward(reentrant, record_):
    """A checkpoint's second run is of phase recompute, can be left out, and each gradient comes once."""
    model, x = Checkpointed(reentrant), torch.randn(2, 3)
    rows = [r for r in record(lambda: model(x).backward(), model, record=record_) if r["kind"] == "module"]
    relu = [(r["role"], r["phase"]) for r in rows if r["module"] == "region.1"]
    assert sorted(relu) == [
        ("grad_input", "backward"), ("grad_output", "backward"), ("input", "forward"), ("input", "recompute"),
        ("output", "forward"), ("output", "recompute")]  # fmt: skip
    left_out = record(lambda: model(x).backward(), model, phases=("forward", "backward"), record=record_)
    left_out = [r for r in left_out if r["kind"] == "module"]
    assert sorted((r["role"], r["phase"]) for r in left_out if r["module"] == "region.1") == sorted(
        pair for pair in relu if pair[1] != "recompute"
    )


class Ops(TorchDispatchMode):
    """The names of the operators that are dispatched."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def peak_bytes(run: Callable[[], None]) -> int:
    """The most bytes that torch had allocated at one time while this ran, over those before."""
    with profile(profile_memory=True) as profiler:
        run()
    assert profiler.profiler is not None
    changes = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = peak = 0
    for change in sorted(changes, key=lambda e: e.start_ns()):
        held += change.nbytes()
        peak = max(peak, held)
    return peak


def test_10_no_added_memory(tmp_path):
    """The monitor dispatches no operator, so no clone, and the largest number of bytes in tensors is the same."""
    model, images = network(True), torch.randn(64, 1, 6, 6)

    def alone() -> None:
        train(model, images)()
        model.zero_grad()

    def monitored() -> None:
        with DispatchMonitor(model, tmp_path / "t.arrow", overwrite=True, quiet=True, **MODULES):
            alone()

    alone()
    with Ops() as plain:
        alone()
    with Ops() as seen:
        monitored()
    assert "aten.relu_.default" in plain.names
    assert plain.names == seen.names
    assert peak_bytes(alone) > 100_000
    assert peak_bytes(alone) == peak_bytes(monitored)


# ----------------------------------------------------------------------------------------------------- places
def test_every_tensor_is_named_by_its_place():
    """Positional, keyword and nested tensors, in tuples, lists, dicts, named tuples and dataclasses, in and out."""

    @dataclass
    class Output:
        logits: torch.Tensor
        extra: dict[str, Any]

    Pair = namedtuple("Pair", "left right")

    class Model(nn.Module):
        def forward(self, x, many, *, mask=None, nest=None):
            return Output(x * 2, {"all": [many[0], (many[1],)], "pair": nest["pair"], 7: mask})

    one = torch.ones(2)
    nest = {"pair": Pair(one * 3, one * 4)}
    rows = record(lambda: Model()(one, [one, one * 2], mask=one * 5, nest=nest), **MODULES)
    assert {(row["arg"], row["max"]) for row in rows if row["role"] == "input"} == {
        ("input[0]", 1), ("input[1][0]", 1), ("input[1][1]", 2), ("kwargs.mask", 5), ("kwargs.nest.pair.left", 3),
        ("kwargs.nest.pair.right", 4)}  # fmt: skip
    assert {(row["arg"], row["max"]) for row in rows if row["role"] == "output"} == {
        ("output.logits", 2), ("output.extra.all[0]", 1), ("output.extra.all[1][0]", 2), ("output.extra.pair.left", 3),
        ("output.extra.pair.right", 4), ("output.extra[7]", 5)}  # fmt: skip


def test_a_keyword_input_is_seen_before_it_is_written():
    """A mask that forward zeroes is recorded as it came."""

    class Zeroes(nn.Module):
        def forward(self, x, *, mask):
            mask.zero_()
            return x * 2

    rows = record(lambda: Zeroes()(torch.ones(2), mask=torch.ones(3)), **MODULES)
    assert only(rows, arg="kwargs.mask")["norm"] == pytest.approx(3**0.5)


def test_an_event_pair_has_its_arguments_on_the_first_row():
    """One event before, one after; `arguments` is {} on the first row of each and null on the others."""

    class Two(nn.Module):
        def forward(self, x, y):
            return x, y

    rows = record(lambda: Two()(torch.ones(1), torch.ones(1)), **MODULES)
    assert [[(r["role"], r["arguments"]) for r in e] for e in events(rows)] == [
        [("input", "{}"), ("input", None)], [("output", "{}"), ("output", None)]]  # fmt: skip
    assert {(r["kind"], r["op"], r["mutation"], r["written"]) for r in rows} == {("module", "Two", "none", False)}


# ----------------------------------------------------------------------------------------------------- targets
def test_targets_by_name_and_by_class():
    """Globs on qualified names, class names, names of base classes, and both together."""
    model = nn.ModuleDict({"enc": nn.Sequential(nn.Linear(2, 2), nn.ReLU6()), "dec": nn.Linear(2, 2)})

    def run():
        model["dec"](model["enc"](torch.ones(1, 2)))

    def modules(**settings: Any) -> set[str]:
        return {row["module"] for row in record(run, model, **MODULES, **settings)}

    assert modules() == {"enc", "enc.0", "enc.1", "dec"}
    assert modules(modules="enc.*") == {"enc.0", "enc.1"}
    assert modules(module_types=("Linear",)) == {"enc.0", "dec"}
    assert modules(module_types="Hardtanh") == {"enc.1"}  # what ReLU6 is made from
    assert modules(modules=["enc*"], module_types=("Lin*", "Seq*")) == {"enc", "enc.0"}


def test_a_class_that_the_model_does_not_have():
    """It is said, with near matches."""
    with pytest.raises(SettingError, match=r"module_types: no module of the model is a 'Relu'; near matches: ReLU"):
        DispatchMonitor(network(True), module_types="Relu", **MODULES)


# ----------------------------------------------------------------------------------------------------- invisible
def test_no_mode_is_pushed_without_ops(tmp_path):
    """`record=("modules",)` leaves the stack of dispatch modes empty; with "ops" one is there."""
    depth = torch._C._len_torch_dispatch_stack
    for record_, expected in ((("modules", "parameters"), 0), (("ops", "modules"), 1)):
        with DispatchMonitor(network(True), tmp_path / "t.arrow", record=record_, overwrite=True, quiet=True):
            assert depth() == expected
    assert depth() == 0


def test_the_fast_path_of_a_transformer_layer_stays_on():
    """In evaluation the whole encoder layer is one fused operator, with and without the monitor, and its inputs are seen."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.randn(2, 3, 8)
    with torch.no_grad():
        rows = record(lambda: layer(x), layer, record=("ops", "modules"))
    assert events(rows, op="aten._transformer_encoder_layer_fwd.default")
    assert numbers(only(rows, kind="module", role="input"))["norm"] == pytest.approx(x.double().norm().item())


def test_gradients_of_an_inplace_module_are_right():
    """The gradients of an in-place ReLU's input and output equal those of an ordinary one, and training is the same to the bit."""
    found = []
    for inplace in (True, False):
        model = network(inplace)
        rows = record(train(model, IMAGES), model, **MODULES)
        alone = network(inplace)
        train(alone, IMAGES)()
        assert all(torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), alone.parameters(), strict=True))
        found.append({(r["module"], r["role"], r["arg"]): numbers(r) for r in rows if r["role"].startswith("grad")})
    assert found[0] == found[1]
    assert {(module, role) for module, role, _ in found[0]} >= {("1", "grad_input"), ("1", "grad_output")}


def test_an_inplace_module_after_a_monitored_one_trains(tmp_path):
    """Module backward hooks make this raise; here a view of a linear's output is written by an in-place ReLU."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.relu = nn.Linear(3, 4), nn.ReLU(True)

        def forward(self, x):
            y = self.linear(x)
            self.relu(y[:, :2])
            return y.sum()

    torch.manual_seed(0)
    model, x = Model(), torch.randn(2, 3)
    model(x).backward()
    expected = model.linear.weight.grad.clone()
    model.zero_grad()
    record(lambda: model(x).backward(), model, **MODULES)
    assert torch.equal(model.linear.weight.grad, expected)


def test_a_stale_view_is_counted_not_watched(tmp_path):
    """`register_hook` on a view whose base was written since ends in a segmentation fault: it is left out, and said."""
    path = tmp_path / "t.arrow"
    base = (torch.ones(4, requires_grad=True) * 2).view(2, 2)
    view = base[0]
    base.mul_(3)
    model = nn.Identity()
    with DispatchMonitor(model, path, quiet=True, **MODULES):
        model(view).sum().backward()
    assert sum(n for why, n in open_trace(path).files[0].skipped.items() if "watched" in why) == 2


def test_an_undefined_gradient_leaves_no_row():
    """Of two outputs one is used: only that one has a gradient."""

    class Split(nn.Module):
        def forward(self, x):
            return x.split(1, 1)

    x = torch.ones(2, 2, requires_grad=True)
    rows = record(lambda: Split()(x)[0].sum().backward(), **MODULES)
    assert [row["arg"] for row in rows if row["role"] == "grad_output"] == ["output[0]"]


def test_nothing_is_left_behind():
    """No hook on leaves, modules or torch, and nn.Module.__call__ and the engine's door are what they were."""
    call, door = nn.Module.__call__, torch.autograd._engine_run_backward
    model, x = network(True), IMAGES.clone().requires_grad_()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def run():
        train(model, x)()
        optimizer.step()

    record(run, model, record=("modules", "parameters"))
    assert nn.Module.__call__ is call
    assert torch.autograd._engine_run_backward is door
    assert not x._backward_hooks
    assert not any(hook_tables(model))
    assert not optimizer._optimizer_step_pre_hooks


def test_hooks_on_leaves_do_not_pile_up(tmp_path):
    """A leaf that is used in every step has at most the hooks of one step."""
    model, x = nn.Linear(3, 3), torch.randn(2, 3, requires_grad=True)
    with DispatchMonitor(model, tmp_path / "t.arrow", quiet=True, **MODULES) as monitor:
        for _ in range(5):
            model(x).sum().backward()
            monitor.step()
        assert not x._backward_hooks


def test_copies_and_pickles_carry_nothing(tmp_path):
    """deepcopy, pickle and torch.save of a model and of its output inside the block, without a warning."""
    model = network(True)
    with DispatchMonitor(model, tmp_path / "t.arrow", quiet=True, **MODULES), warnings.catch_warnings():
        warnings.simplefilter("error")
        output = model(IMAGES)
        for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert not any(hook_tables(copied))
        torch.save(model, io.BytesIO())
        torch.save(output, io.BytesIO())


def test_exceptions_and_what_follows():
    """A call that raises has no output, also for KeyboardInterrupt, and the calls after it are right."""

    class Stops(nn.Module):
        def forward(self, x):
            raise KeyboardInterrupt

    model = nn.ModuleList([nn.Linear(2, 2), Stops()])

    def run():
        with pytest.raises(KeyboardInterrupt):
            model[1](model[0](torch.ones(1, 2)))
        model[0](torch.ones(1, 2))

    rows = [(r["module"], r["role"]) for r in record(run, model, **MODULES)]
    assert rows == [("0", "input"), ("0", "output"), ("1", "input"), ("0", "input"), ("0", "output")]


def test_modules_made_in_forward_are_counted(tmp_path):
    """A module that the model does not own has no name to be recorded under; the trace says how many calls that were."""

    class Model(nn.Module):
        def forward(self, x):
            return nn.ReLU()(x)

    model = Model()
    with DispatchMonitor(model, tmp_path / "t.arrow", quiet=True, **MODULES):
        model(torch.ones(2))
    assert open_trace(tmp_path / "t.arrow").files[0].skipped == {"calls of modules that the model does not own": 1}


@pytest.mark.parametrize("record_", [("modules",), ("ops", "modules")], ids="+".join)
def test_functorch_transforms(record_):
    """Inside vmap and grad tensors have no memory of their own: rows without statistics, and the result is the same."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    x = torch.randn(2, 3)
    weights = dict(model.named_parameters())

    def loss(weights, x):
        return torch.func.functional_call(model, weights, (x,)).square().sum()

    def run():
        return torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, x)

    expected, found = run(), []
    rows = record(lambda: found.append(run()), model, record=record_)
    assert all(torch.equal(found[0][name], expected[name]) for name in expected)
    assert any(r["kind"] == "module" for r in rows)


def test_compiled_models_compile_as_before(tmp_path):
    """With fullgraph=True: the same number of graphs, no warning, and the call of the compiled module is seen once."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(True), nn.Linear(4, 1))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    x = torch.randn(2, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with DispatchMonitor(model, tmp_path / "t.arrow", quiet=True, **MODULES):
            compiled(x).sum().backward()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    rows = rows_of(tmp_path / "t.arrow")
    assert {r["module"] for r in rows} == {""}
    assert [r["role"] for r in rows] == ["input", "output", "grad_output"]


def test_duration_is_that_of_forward():
    """The event of the outputs began with forward and lasted as long as it; the other events are moments."""
    import time

    class Slow(nn.Module):
        def forward(self, x):
            time.sleep(0.02)
            return x + 1

    model = nn.Sequential(Slow(), nn.Identity())
    around = []

    def run():
        start = time.perf_counter_ns()
        model(torch.ones(1))
        around.append(time.perf_counter_ns() - start)

    rows = record(run, model, **MODULES)
    assert all(row["duration_ns"] is None for row in rows if row["role"] == "input")
    whole, slow, rest = (only(rows, module=name, role="output")["duration_ns"] for name in ("", "0", "1"))
    assert slow >= 20_000_000
    assert 0 < rest <= whole - slow
    assert whole <= around[0]
