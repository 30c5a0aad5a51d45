"""Every backward operator leads to the module and the forward operator whose gradient it computes."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from attribution_truth import judged
from dispatchmon import DispatchMonitor, open_trace
from dispatchmon.torch_internals import kernels_only
from recorded import events, needs_compilation, only, record, rows_of


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.act, self.b, self.n = nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x):
        return self.n(self.b(self.act(self.a(x))))


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.f, self.g = MLP(), MLP()

    def forward(self, x):
        x = x + self.f(x)
        return x * 2 + self.g(x) - x.mean()


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(8, 8)

    def forward(self, x):
        return self.line(torch.tanh(self.line(x)))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.m, self.o = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 8)

    def forward(self, x):
        return self.o(self.m(x, x, x)[0])


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad


class CustomFunction(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(8, 8)

    def forward(self, x):
        return Square.apply(self.line(x)).sin()


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.reentrant, self.f, self.g, self.h = reentrant, MLP(), MLP(), nn.Linear(8, 8)

    def forward(self, x):
        x = checkpoint(self.f, x, use_reentrant=self.reentrant)
        x = checkpoint(self.g, x, use_reentrant=self.reentrant)
        return self.h(x)


class CheckpointedFunction(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.reentrant, self.line = reentrant, nn.Linear(8, 8)

    def forward(self, x):
        return checkpoint(lambda y: (y.sin() * y.cos()).exp(), self.line(x), use_reentrant=self.reentrant)


class Views(nn.Module):
    def __init__(self):
        super().__init__()
        self.line, self.k = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        y = self.line(x) * 1
        y[:, :4].mul_(2)
        y[:, 4:] = 0
        y.view(-1).add_(1)
        c, d = self.k(y).chunk(2, -1)
        return F.softmax(c * d, -1)


class ViewLast(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(8, 8)

    def forward(self, x):
        y = self.line(x) * 1
        y[:, :4].mul_(2)
        return y


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.r, self.e = nn.LSTM(8, 8, batch_first=True), nn.Embedding(10, 8)

    def forward(self, x):
        return self.r(self.e((x * 3).long().abs().clamp(0, 9)[..., 0]))[0]


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.c, self.bn, self.d = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5)

    def forward(self, x):
        return F.max_pool2d(F.relu_(self.d(self.bn(self.c(x)))), 2)


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.f, self.g, self.h = MLP(), MLP(), nn.Linear(8, 8)

    def forward(self, x):
        return self.h(self.f(x) * self.g(x))


class Keywords(nn.Module):
    def __init__(self):
        super().__init__()
        self.line, self.f, self.g = nn.Linear(8, 8), KeywordMLP(), KeywordMLP()

    def forward(self, x):
        return self.g(x=self.f(x=self.line(x)))


class KeywordMLP(MLP):
    pass


@dataclasses.dataclass
class Output:
    y: torch.Tensor


class Dataclass(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(8, 8)

    def forward(self, x):
        return Output(self.line(x))


class Dataclasses(nn.Module):
    def __init__(self):
        super().__init__()
        self.p, self.q, self.z = Dataclass(), Dataclass(), nn.Linear(8, 8)

    def forward(self, x):
        return self.z(self.q(self.p(x).y).y)


class TwoOutputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.a(x), self.b(x)


class Skip(nn.Module):
    def __init__(self):
        super().__init__()
        self.t, self.m, self.n = TwoOutputs(), MLP(), MLP()

    def forward(self, x):
        u, v = self.t(x)
        return self.n(self.m(u)) + v


class Recursive(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(8, 8)

    def forward(self, x, depth=3):
        return self.line(x) if depth == 0 else torch.tanh(self(self.line(x), depth - 1))


class MadeInside(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(8, 8)

    def forward(self, x):
        return nn.Sequential(nn.Tanh(), nn.Softplus())(self.line(x))


def of(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


MODELS = {
    "MLP with in-place ReLU": (MLP, lambda m: m(of(4, 8))),
    "gradient of the input": (MLP, lambda m: m(of(4, 8).requires_grad_())),
    "residual": (Residual, lambda m: m(of(4, 8))),
    "one module called twice": (Shared, lambda m: m(of(4, 8))),
    "MultiheadAttention": (Attention, lambda m: m(of(2, 5, 8))),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), lambda m: m(of(2, 5, 8))),
    "custom Function": (CustomFunction, lambda m: m(of(4, 8))),
    "checkpoint, reentrant": (lambda: Checkpointed(True), lambda m: m(of(4, 8).requires_grad_())),
    "checkpoint, not reentrant": (lambda: Checkpointed(False), lambda m: m(of(4, 8))),
    "checkpointed function, reentrant": (lambda: CheckpointedFunction(True), lambda m: m(of(4, 8))),
    "checkpointed function, not reentrant": (lambda: CheckpointedFunction(False), lambda m: m(of(4, 8))),
    "in-place on views": (Views, lambda m: m(of(4, 8))),
    "in-place on a view, last in its module": (lambda: nn.Sequential(ViewLast(), nn.Linear(8, 8)), lambda m: m(of(4, 8))),
    "two towers": (Towers, lambda m: m(of(4, 8))),
    "keyword inputs": (Keywords, lambda m: m(of(4, 8))),
    "dataclass outputs": (Dataclasses, lambda m: m(of(4, 8))),
    "skip from a module with two outputs": (Skip, lambda m: m(of(4, 8))),
    "recursive module": (Recursive, lambda m: m(of(4, 8))),
    "LSTM and Embedding": (Recurrent, lambda m: m(of(2, 5, 8))),
    "convolution, batch norm, dropout": (Convolution, lambda m: m(of(2, 3, 8, 8))),
    "modules made inside forward": (MadeInside, lambda m: m(of(4, 8))),
}  # fmt: skip


def check(rows, truth) -> int:
    """Every backward event whose node carries a label: its module, and the call that its forward event belongs to."""
    checked = 0
    for event in events(rows, phase="backward"):
        row = event[0]
        known = truth.truth_of_event.get(row["event"])
        if known is None:
            continue
        call, module = known
        assert row["module"] == module, (row["op"], row["event"])
        assert row["forward_event"] is not None, (row["op"], row["event"])
        if call != "function":
            assert truth.call_of_event[row["forward_event"]] == call, (row["op"], row["event"])
        checked += 1
    return checked


@pytest.mark.parametrize("name", MODELS)
def test_backward_leads_to_its_forward(name: str, tmp_path: Path, monkeypatch) -> None:
    """Module and forward event equal the independent labels, for every backward operator of the model."""
    torch.manual_seed(0)
    make, run = MODELS[name]
    rows, truth = judged(make(), run, lambda out: torch.autograd.backward(out.sum()), tmp_path / "t.arrow", monkeypatch,
                         rearm="reentrant" in name)  # fmt: skip
    assert check(rows, truth) > 5


def test_double_backward(tmp_path: Path, monkeypatch) -> None:
    """The second backward pass leads to the operators of the first, and these to the modules."""
    torch.manual_seed(0)
    model = Residual()

    def backward(out):
        gradients = torch.autograd.grad(out.pow(2).sum(), list(model.parameters()), create_graph=True)
        sum(g.pow(2).sum() for g in gradients).backward()

    rows, truth = judged(model, lambda m: m(of(4, 8)), backward, tmp_path / "t.arrow", monkeypatch)
    assert check(rows, truth) > 50


def test_module_call_counts_the_calls_of_a_module_in_its_step() -> None:
    """A module called twice has calls 0 and 1, in forward and in backward, and starts again in the next step."""
    model = Shared()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def run():
        for _ in range(2):
            model(of(4, 8)).sum().backward()
            optimizer.step()

    rows = record(run, model)
    calls = [(e[0]["step"], e[0]["module"], e[0]["module_call"]) for e in events(rows, op="aten.addmm.default")]
    assert calls == [(0, "line", 0), (0, "line", 1), (1, "line", 0), (1, "line", 1)]
    sums = [(e[0]["step"], e[0]["module_call"]) for e in events(rows, op="aten.sum.dim_IntList", module="line")]
    assert sums == [(0, 1), (0, 0), (1, 1), (1, 0)]


def test_a_module_registered_twice_carries_the_name_it_was_called_by() -> None:
    """Below its caller the path of the call decides."""

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            shared = nn.Linear(8, 8)
            self.left, self.right = nn.Sequential(shared), nn.Sequential(shared)

        def forward(self, x):
            return self.right(self.left(x))

    model = Two()
    rows = record(lambda: model(of(2, 8)), model)
    assert [e[0]["module"] for e in events(rows, op="aten.addmm.default")] == ["left.0", "right.0"]


def test_modules_outside_the_model_have_no_name() -> None:
    """A loss that is no part of the model is code outside it."""
    model, loss = nn.Linear(8, 8), nn.Sequential(nn.Tanh())
    rows = record(lambda: loss(model(of(2, 8))), model)
    assert events(rows, op="aten.tanh.default")[0][0]["module"] is None


def test_without_a_model_each_outermost_module_is_a_root() -> None:
    """Names are relative to the module that was called."""
    first, second = nn.Sequential(nn.Tanh()), nn.Sequential(nn.Sequential(nn.Sigmoid()))
    rows = record(lambda: second(first(of(2, 8))))
    assert events(rows, op="aten.tanh.default")[0][0]["module"] == "0"
    assert events(rows, op="aten.sigmoid.default")[0][0]["module"] == "0.0"


def test_a_module_put_into_the_model_later_gets_its_name() -> None:
    """Names are learned again when an unknown module is called."""
    model = nn.Sequential(nn.Tanh())

    def run():
        model(of(2, 8))
        model.append(nn.Sigmoid())
        model(of(2, 8))

    rows = record(run, model)
    assert events(rows, op="aten.sigmoid.default")[0][0]["module"] == "1"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_in_forward_leaves_the_modules(error) -> None:
    """What follows an exception is outside the modules that it left."""

    class Fails(nn.Module):
        def forward(self, x):
            raise error

    model = nn.Sequential(nn.Tanh(), Fails())

    def run():
        with pytest.raises(error):
            model(of(2, 8))
        of(2, 8).cos()
        model[0](of(2, 8))

    rows = record(run, model)
    assert events(rows, op="aten.cos.default")[0][0]["module"] is None
    assert [e[0]["module"] for e in events(rows, op="aten.tanh.default")] == ["0", "0"]


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputed_operators_are_recompute_in_their_module(reentrant) -> None:
    """A checkpoint's second run has phase `recompute`, its module, and the module call of the first run."""
    model = Checkpointed(reentrant)
    rows = record(lambda: model(of(4, 8).requires_grad_()).sum().backward(), model)
    norms = [
        (e[0]["phase"], e[0]["module"], e[0]["module_call"])
        for e in events(rows, op="aten.addmm.default", module="f.a")
    ]
    assert norms == [("forward", "f.a", 0), ("recompute", "f.a", 0)]
    assert {e[0]["forward_event"] for e in events(rows, phase="recompute")} == {None}


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_recomputed_function_is_recompute_where_it_was_called(reentrant) -> None:
    """A checkpointed function that is no module keeps the place of its first run."""
    model = nn.Sequential(CheckpointedFunction(reentrant))
    rows = record(lambda: model(of(4, 8)).sum().backward(), model)
    sines = [(e[0]["phase"], e[0]["module"]) for e in events(rows, op="aten.sin.default")]
    assert ("recompute", "0") in sines
    assert sines[0] == ("forward", "0")


def test_gradient_accumulation_names_the_gradient_and_its_owner() -> None:
    """The operator that keeps a gradient belongs to the parameter's module; its result is `….grad`."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))

    def run():
        for _ in range(2):
            model(of(4, 8)).sum().backward()

    rows = record(run, model)
    named = [
        (e[-1]["op"], e[-1]["module"], e[-1]["name"])
        for e in events(rows, phase="backward")
        if e[-1]["name"] and "grad" in e[-1]["name"]
    ]
    assert ("aten.detach.default", "1", "1.weight.grad") in named
    assert ("aten.add_.Tensor", "0", "0.bias.grad") in named
    assert all(module == name.rsplit(".", 2)[0] for _, module, name in named)


@pytest.mark.parametrize("kind", ["fused", "foreach", "for-loop"])
def test_optimizer_events_name_what_they_write_from_the_first_step_on(kind) -> None:
    """Parameters, gradients and states, item by item, also in the step that creates the states."""
    model = nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters(), fused=kind == "fused", foreach=kind == "foreach")

    def run():
        model(of(3, 4)).sum().backward()
        optimizer.step()

    rows = [r for r in record(run, model) if r["phase"] == "optimizer" and r["written"] and r["role"] == "output"]
    names = {r["name"] for r in rows}
    assert {"weight", "bias", "weight.exp_avg", "bias.exp_avg_sq", "weight.step"} <= names


def test_source_of_backward_is_the_line_of_its_forward(tmp_path: Path, monkeypatch) -> None:
    """A backward operator carries the user's line of its forward operator; torch's own Python is passed over."""
    model = MLP()

    def run():
        model(of(4, 8)).sum().backward()

    rows = record(run, model)
    forward = {r["event"]: r["source"] for r in rows}
    (norm,) = events(rows, op="aten.native_layer_norm.default")
    assert norm[0]["source"].startswith("test_attribution.py:")
    assert norm[0]["source"].endswith(" in forward")
    for event in events(rows, phase="backward"):
        if event[0]["forward_event"] is not None:
            assert event[0]["source"] == forward[event[0]["forward_event"]]


def test_no_source_when_not_asked_for() -> None:
    """`source=False` leaves the column null."""
    model = MLP()
    assert {r["source"] for r in record(lambda: model(of(4, 8)), model, source=False)} == {None}


def test_forward_in_a_second_thread_is_led_to_its_modules() -> None:
    """Sequence numbers are per thread: backward of a forward in another thread must not be taken for this thread's."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Sigmoid())

    def run():
        model(of(4, 8))  # numbers of this thread that could be confused
        outputs = []
        thread = threading.Thread(target=lambda: outputs.append(model(of(4, 8))))
        thread.start()
        thread.join()
        outputs[0].sum().backward()

    rows = record(run, model)
    assert [e[0]["module"] for e in events(rows, op="aten.tanh_backward.default")] == ["1"]
    assert [e[0]["module"] for e in events(rows, op="aten.sigmoid_backward.default")] == ["3"]
    assert [e[0]["forward_event"] for e in events(rows, op="aten.tanh_backward.default")] == [None]
    assert only(events(rows, op="aten.tanh_backward.default")[0], role="output")["shape"] == [4, 8]


@pytest.mark.slow
@needs_compilation
@pytest.mark.parametrize("given", ["the model", "what torch.compile made of it"])
def test_a_compiled_model_is_one_call_with_its_name(given) -> None:
    """What stays visible of a compiled model belongs to it, under the name that the given model has for it."""
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    compiled = torch.compile(model, backend="aot_eager")

    def run():
        compiled(of(2, 4)).sum().backward()

    rows = record(run, model if given == "the model" else compiled)
    assert {e[0]["module"] for e in events(rows, op="aten.tanh.default")} == {""}
    assert {e[0]["module"] for e in events(rows, op="aten.mm.default")} == {""}


@needs_compilation
def test_compiled_functions_are_counted_and_what_they_wrote_is_measured_again(tmp_path) -> None:
    """What fused code writes is no operator: values met after it are others, when it was just made and when it runs again."""
    torch._dynamo.reset()

    def unseen(graph, inputs):
        def run(*args):
            with kernels_only():
                return graph(*args)

        return run

    add_one = torch.compile(lambda x: x.add_(1), backend=unseen)
    x = torch.zeros(3)
    with DispatchMonitor(None, tmp_path / "t.arrow", quiet=True):
        for _ in range(3):
            x.sum()
            add_one(x)
    (reads,) = {tuple(row["min"] for row in rows_of(tmp_path / "t.arrow") if row["arg"] == "self")}
    assert reads == (0.0, 1.0, 2.0)
    assert open_trace(tmp_path / "t.arrow").files[0].skipped == {
        "entries into other code of torch.compile, whose fused operators cannot be seen": 3
    }


def test_compiled_eager_shows_every_operator_in_its_module_and_is_undone() -> None:
    """`compiled="eager"` runs operator by operator; afterwards the model is compiled again."""
    torch._dynamo.reset()
    runs = []

    def backend(graph, inputs):
        def run(*args):
            runs.append(1)
            return graph(*args)

        return run

    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    with torch.no_grad():
        compiled(of(2, 4))
        rows = record(lambda: compiled(of(2, 4)), model, compiled="eager")
        during = len(runs)
        compiled(of(2, 4))
    assert [e[0]["module"] for e in events(rows, op="aten.tanh.default")] == ["1"]
    assert (during, len(runs)) == (1, 2)
