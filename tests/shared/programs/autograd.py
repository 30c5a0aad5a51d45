"""What autograd offers beyond a plain backward pass."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from programs import program


def blocks(inplace):
    return nn.ModuleList(
        nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.Dropout(0.3), nn.Linear(6, 6), nn.ReLU(inplace)) for _ in range(2)
    )


@program("aten.bernoulli_.float", "aten.relu_.default", reentrant=True, not_reentrant=False)
def checkpoints(reentrant):
    def run(model):
        x = torch.randn(4, 6, requires_grad=True)
        y = x
        for block in model:
            y = checkpoint(block, y, use_reentrant=reentrant)
        y.square().mean().backward()
        return y, x.grad, [p.grad for p in model.parameters()]

    return blocks(inplace=True), run


@program("aten.addmm.default")
def selective_checkpoints():
    computed = []

    def policy(context, op, *args, **kwargs):
        computed.append((context.is_recompute, str(op)))
        return CheckpointPolicy.MUST_SAVE if op == torch.ops.aten.addmm.default else CheckpointPolicy.PREFER_RECOMPUTE

    def run(model):
        x = torch.randn(4, 6, requires_grad=True)
        y = x
        for block in model:
            y = checkpoint(
                block, y, use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(policy)
            )
        y.square().mean().backward()
        return y, x.grad, computed

    return blocks(inplace=False), run


class Scaled(torch.autograd.Function):
    """Writes its input, saves its output, and needs its own backward to be differentiable."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.mark_dirty(x)
        x.mul_(factor)
        ctx.factor = factor
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * ctx.factor + 0 * x.sum(), None


@program("aten.mul_.Tensor")
def custom_function():
    def run(model):
        x = torch.randn(3, 4, requires_grad=True)
        y = Scaled.apply(model(x), 3.0)
        y.square().sum().backward()
        return y, x.grad, y._version, type(y.grad_fn).__name__

    return nn.Linear(4, 4), run


@program("aten.tanh_backward.default")
def double_backward():
    def run(model):
        x = torch.randn(3, 4, requires_grad=True)
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        ((gradient.norm(2, dim=1) - 1) ** 2).mean().backward()
        return gradient, x.grad, [p.grad for p in model.parameters()]

    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)), run


@program()
def hooks_see_the_same():
    """Hooks on tensors, nodes, modules and saved tensors run as often and see the same values."""

    def run(model):
        seen = []
        note = lambda *values: seen.append([v.clone() if isinstance(v, torch.Tensor) else v for v in values])
        handles = [
            model[0].register_forward_hook(lambda m, a, out: note(a[0], out)),
            model[2].register_full_backward_hook(lambda m, gi, go: note(gi[0], go[0])),
            model[0].weight.register_post_accumulate_grad_hook(lambda p: note(p.grad)),
        ]
        x = torch.randn(3, 4, requires_grad=True)
        packed = lambda t: (seen.append(tuple(t.shape)), t)[1]
        with torch.autograd.graph.saved_tensors_hooks(packed, packed):
            y = model(x)
            y.register_hook(lambda g: note(g))
            y.grad_fn.register_prehook(lambda g: note(g[0]))
            y.sum().backward()
        for handle in handles:
            handle.remove()
        return seen, x.grad

    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)), run


@program("aten.add_.Tensor")
def writes_through_views():
    def run(model):
        x = torch.randn(4, 6, requires_grad=True)
        h = model(x)
        top = h[:2]
        top.mul_(2)
        h[:, 1].add_(top[0, 0])
        h.view(-1)[3:5].copy_(torch.ones(2))
        a, b = torch.chunk(h.clone(), 2)
        y = a.exp() * b
        y.sum().backward()
        return y, x.grad, h._version, top._version, type(top.grad_fn).__name__

    return nn.Linear(6, 6), run


@program("aten._unsafe_view.default")
def linear_in_inference_mode():
    """Under any dispatch mode `weight.t().requires_grad` turns False here, and `linear` would take another path."""

    def run(model):
        wide = torch.randn(5, 7, 64).transpose(0, 1)
        assert not wide.is_contiguous()
        with torch.inference_mode():
            return model(wide), torch.matmul(wide, model.weight.t()), model(wide).is_inference()

    return nn.Linear(64, 48), run


@program("aten.addmm.default")
def no_grad_and_back():
    def run(model):
        with torch.no_grad():
            quiet = model(torch.randn(3, 4))
            model.weight.mul_(0.9)
            torch._foreach_mul_(list(model.parameters()), 0.9)
        loud = model(quiet)
        loud.sum().backward()
        return quiet, loud, model.weight.grad, [p._version for p in model.parameters()]

    return nn.Linear(4, 4), run


@program("aten._to_copy.default")
def anomaly_detection():
    def run(model):
        with torch.autograd.set_detect_anomaly(True):
            y = model(torch.randn(2, 4)).double().exp().sum()
            y.backward()
        return y, model.weight.grad

    return nn.Linear(4, 4), run


@program("aten._foreach_add_.Scalar")
def version_counters():
    """Every kind of write moves the version counters as far as without a monitor."""

    def run(model):
        seen = []
        note = lambda *tensors: seen.append([t._version for t in tensors])
        a = [torch.ones(4), torch.ones(4)]
        torch._foreach_zero_(a)
        note(*a)
        torch._foreach_copy_(a, [torch.ones(4)] * 2)
        torch._foreach_add_(a, 1.0)
        torch._foreach_lerp_(a, a, 0.5)
        note(*a)
        results = [torch.empty(4), torch.empty(4)]
        torch.ops.aten._foreach_add.Scalar_out(a, 1.0, out=results)
        note(*a, *results)
        torch.ops.aten.unbind_copy.int_out(torch.ones(2, 4), out=results)
        note(*results)
        found = torch.zeros(1)
        torch._amp_foreach_non_finite_check_and_unscale_(a, found, torch.ones(1))
        note(*a, found)
        with torch.inference_mode():
            torch._foreach_add_(a, 1.0)
        note(*a)
        mean, variance = torch.zeros(3), torch.ones(3)
        torch.batch_norm(torch.rand(4, 3), None, None, mean, variance, True, 0.1, 1e-5, False)
        note(mean, variance)
        base = torch.ones(3, 2)
        row = base[0]
        row.add_(1)
        base[1:].exp_()
        note(base, row, base.detach(), base.data)
        out = torch.empty(2), torch.empty(2, dtype=torch.long)
        torch.max(torch.rand(2, 3), 1, out=out)
        note(*out)
        z = torch.view_as_complex(torch.ones(2, 2))
        z.real.mul_(2)
        note(z)
        return seen

    return None, run
