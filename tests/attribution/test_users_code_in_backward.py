"""Code of the user's that runs inside backward stands at its own line; torch's own at that of the forward operator."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.autograd.graph import register_multi_grad_hook, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from audited import NEEDS_SAVINGS, audited
from recorded import record


class Mine(torch.autograd.Function):
    """Doubles; its gradient is computed by a cosine that nobody else calls."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 2 + x.cos() * 0  # own line


def own(grad, *_):
    return grad + grad.cos() * 0  # own line


def own_of_module(module, grads, *_):
    return tuple(g + g.cos() * 0 for g in grads)  # own line


def own_of_parameter(parameter):
    parameter.grad.add_(parameter.grad.cos(), alpha=0)  # own line


def of_tensor(x, layer):
    y = layer(x)
    y.register_hook(own)
    return y


def of_leaf(x, layer):
    layer.weight.register_hook(own)
    return layer(x)


def after_accumulation(x, layer):
    layer.weight.register_post_accumulate_grad_hook(own_of_parameter)
    return layer(x)


def of_node(x, layer):
    y = layer(x)
    y.grad_fn.register_hook(lambda inputs, outputs: tuple(None if g is None else own(g) for g in inputs))
    return y


def of_several(x, layer):
    y = layer(x)

    def look(grads):
        own(grads[0])

    register_multi_grad_hook((y, layer.weight), look)
    return y


def before_node(x, layer):
    y = layer(x)
    y.grad_fn.register_prehook(lambda grads: (own(grads[0]),))
    return y


def of_module(x, layer):
    layer.register_full_backward_hook(lambda m, gi, go: own_of_module(m, gi) if gi[0] is not None else None)
    return layer(x)


def before_module(x, layer):
    layer.register_full_backward_pre_hook(lambda m, go: own_of_module(m, go))
    return layer(x)


def of_saved_values(x, layer):
    def unpack(value):
        return value + value.cos() * 0  # own line

    with saved_tensors_hooks(lambda value: value, unpack):
        return layer(x).exp()


def of_function(x, layer):
    return Mine.apply(layer(x))


HOOKS = (
    of_tensor, of_leaf, after_accumulation, of_node, before_node, of_several, of_module, before_module, of_saved_values, of_function,
)  # fmt: skip


def line_of(source):
    return Path(__file__).read_text().splitlines()[int(source.split(":")[1].split(" ")[0]) - 1]


@pytest.mark.parametrize("hooked", HOOKS, ids=lambda each: each.__name__)
def test_the_users_code_has_its_own_line(hooked):
    """And its function; what torch computes beside it stays at the line of its forward operator."""
    layer = nn.Linear(3, 3)
    x = torch.randn(2, 3, requires_grad=True)
    rows = record(lambda: hooked(x, layer).sum().backward(), layer)
    backward = [r for r in rows if r["phase"] == "backward" and r["arguments"] is not None]
    cosines = [r for r in backward if r["op"] == "aten.cos.default"]
    assert cosines
    for row in cosines:
        assert "# own line" in line_of(row["source"])
        assert row["source"].split(" in ")[1] in ("own", "own_of_module", "own_of_parameter", "unpack", "backward", "<genexpr>")
    products = [r for r in backward if r["op"] == "aten.mm.default"]
    assert products
    assert all("layer(x)" in line_of(r["source"]) for r in products)
    assert all(r["forward_event"] is not None for r in products)


@pytest.mark.parametrize("hooked", [of_tensor, of_function, before_node], ids=lambda each: each.__name__)
def test_the_forward_operator_stays(hooked):
    """`forward_event` of the user's own operators is that whose node runs."""
    layer = nn.Linear(3, 3)
    rows = record(lambda: hooked(torch.randn(2, 3), layer).sum().backward(), layer)
    (forward,) = {r["forward_event"] for r in rows if r["op"] == "aten.cos.default" and r["phase"] == "backward"}
    assert forward is not None
    assert next(r["phase"] for r in rows if r["event"] == forward) == "forward"


def test_double_backward_leads_to_the_backward_that_it_differentiates():
    """The gradient of the cosine in `Mine.backward` is at that line; of the layer's at the layer's."""
    layer = nn.Linear(3, 3)
    x = torch.randn(2, 3, requires_grad=True)

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.square()

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * 2 * x.cos()  # own line

    def run():
        (g,) = torch.autograd.grad(Twice.apply(layer(x)).sum(), x, create_graph=True)
        g.sum().backward()

    rows = record(run, layer)
    sines = [r for r in rows if r["op"] == "aten.sin.default" and r["phase"] == "backward"]
    assert sines
    assert all("# own line" in line_of(r["source"]) for r in sines)


def test_recomputed_code_keeps_its_line():
    """A checkpointed region that runs again is the user's forward, not its backward."""
    layer = nn.Linear(3, 3)

    def region(x):
        return layer(x).cos().exp()  # own line

    rows = record(lambda: checkpoint(region, torch.randn(2, 3), use_reentrant=False).sum().backward(), layer)
    again = [r for r in rows if r["op"] == "aten.cos.default" and r["phase"] == "recompute"]
    assert again
    assert all("# own line" in line_of(r["source"]) for r in again)


@NEEDS_SAVINGS
def test_a_hook_that_writes_is_named_itself():
    """Not the forward operator whose gradient it got; the module is the one that runs, here none."""

    class Halving(nn.Module):
        def forward(self, x):
            y = x.exp()

            def halve(grad):
                y.data.mul_(0.5)  # own line

            y.register_hook(halve)
            return y

    model = nn.Sequential(nn.Linear(3, 3), Halving())

    def run():
        loss = model(torch.ones(2, 3)).sum()
        loss.backward(retain_graph=True)
        loss.backward()

    outcome = audited(run, model)
    assert outcome.error is None
    found = outcome.hazards[0]
    assert (found.kind, found.op, found.phase, found.module) == ("write-after-save", "aten.mul_.Tensor", "backward", None)
    assert "# own line" in line_of(found.source)
    assert found.victim.op == "aten.exp.default"
    assert found.victim.module == "1"
