"""Function transforms, tracers, subclasses and other kinds of tensors."""

from __future__ import annotations

import os

import torch
from torch import nn
from torch.func import functional_call, functionalize, grad, hessian, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.data import DataLoader, Dataset

from programs import program


@program("aten.addmm.default")
def function_transforms():
    def run(model):
        parameters = dict(model.named_parameters())
        loss = lambda p, x: functional_call(model, p, (x,)).square().sum()

        def writes(x):
            y = x.clone()
            y.mul_(2)
            y[0] = 1.0
            return y.sum()

        x = torch.randn(5, 4)
        per_sample = vmap(grad(loss), (None, 0), randomness="different")(parameters, x)
        return (
            per_sample, hessian(lambda v: (v.sin() * v).sum())(x[0]), jvp(torch.tanh, (x,), (x,)), vmap(writes)(x),
            grad(writes)(x), functionalize(writes)(x), loss(parameters, x),
        )  # fmt: skip

    return nn.Linear(4, 3), run


@program()
def forward_mode_derivatives():
    def run(model):
        import torch.autograd.forward_ad as forward_ad

        with forward_ad.dual_level():
            x = forward_ad.make_dual(torch.randn(2, 4), torch.randn(2, 4))
            return tuple(forward_ad.unpack_dual((model(x) * 2).sin_()))

    return nn.Linear(4, 3), run


def rewritten(x):
    y = x * x.shape[0]
    y.add_(1)
    return y.view(-1).sin().sum()


@program()
def tracers():
    """`make_fx`, `torch.export` and `symbolic_trace` find the same graphs, guards and ranges."""

    def run(model):
        x = torch.randn(4, 3)
        symbolic = make_fx(rewritten, tracing_mode="symbolic")(x)
        batch = torch.export.Dim("batch", min=2, max=100)
        exported = torch.export.export(model, (x,), dynamic_shapes=({0: batch},))
        return (
            make_fx(rewritten)(x).code, make_fx(rewritten, tracing_mode="fake")(x).code, symbolic.code,
            [str(g.expr) for g in symbolic.shape_env.guards], [str(r) for r in exported.range_constraints.values()],
            exported.graph_module.code, torch.fx.symbolic_trace(model).code, exported.module()(x),
        )  # fmt: skip

    return nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True)), run


@program("aten.addmm.default")
def torchscript():
    class Choice(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 3)

        def forward(self, x):
            if bool(x.sum() > 0):
                return self.inner(x).relu_()
            return x - self.inner(x)

    def run(model):
        x = torch.randn(2, 3)
        scripted, traced = torch.jit.script(model), torch.jit.trace(model, x.abs(), check_trace=True)
        nodes = [node.kind() for node in traced.inlined_graph.nodes()]
        y = scripted(x) + scripted(-x) + traced(x)
        y.sum().backward()
        return y, scripted.code, nodes, [p.grad for p in model.parameters()]

    return Choice(), run


class Noted(torch.Tensor):
    """A subclass that notes which functions are called on it."""

    calls: list[str] = []

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        cls.calls.append(getattr(function, "__name__", str(function)))
        return super().__torch_function__(function, types, args, kwargs or {})


class Wrapped(torch.Tensor):
    """A subclass that holds another tensor and notes which operators reach it."""

    calls: list[str] = []

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, requires_grad=inner.requires_grad
        )

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        cls.calls.append(str(function))
        inner = [a.inner if isinstance(a, cls) else a for a in args]
        return cls(function(*inner, **(kwargs or {})))


@program("aten.mul.Tensor")
def tensor_subclasses():
    def run(model):
        Noted.calls, Wrapped.calls = [], []
        x = torch.randn(3).as_subclass(Noted).requires_grad_()
        y = (x * 2).relu_().sum()
        y.backward()
        w = Wrapped(torch.randn(3, 3))
        z = (w * 2 + w).exp()
        return y.as_subclass(torch.Tensor), x.grad.as_subclass(torch.Tensor), z.inner, list(Noted.calls), Wrapped.calls

    return None, run


class Counting(torch.overrides.TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.calls.append(getattr(function, "__name__", str(function)))
        return function(*args, **(kwargs or {}))


@program("aten.addmm.default")
def torch_function_mode():
    """A `TorchFunctionMode` sees the program's own calls, none of the monitor's."""

    def run(model):
        optimizer = torch.optim.Adam(model.parameters())
        with Counting() as counting:
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.randn(2, 4)).sum().backward()
                optimizer.step()
        return counting.calls

    return nn.Linear(4, 4), run


@program()
def other_kinds_of_tensors():
    """Sparse, nested, quantized, mkldnn, complex, meta and copy-on-write tensors, and memory that was given back."""

    def run(model):
        s = torch.eye(3).to_sparse().requires_grad_()
        torch.sparse.mm(s, torch.ones(3, 2)).sum().backward()
        nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)
        q = torch.quantize_per_tensor(torch.randn(4), 0.1, 0, torch.qint8)
        z = torch.randn(3, dtype=torch.complex64)
        shared = torch.randn(8)
        lazy = torch._lazy_clone(shared)
        read = lazy + 1
        gone = torch.randn(64, 64)
        gone.untyped_storage().resize_(0)
        with torch.device("meta"):
            meta = nn.Linear(3, 3)(torch.ones(2, 3))
        return (
            s.grad.to_dense(), (torch.eye(3).to_sparse_csr() @ torch.ones(3, 2)), (nested * 2).values(),
            torch.relu(q).dequantize(), torch.ones(4, 4).to_mkldnn().to_dense(), (z.conj() * z.imag).resolve_conj(),
            torch._C._is_cow_tensor(lazy), read, tuple(gone.view(-1).shape), meta.shape, torch.randn(0, 3).sum(),
            torch.ones(3, dtype=torch.float8_e4m3fn).float(), torch.tensor([1, 2], dtype=torch.uint16),
        )  # fmt: skip

    return None, run


class Numbers(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        x = torch.full((4,), i / 8).erfinv() + torch.rand(4)
        return x, os.getpid()


@program("aten.addmm.default")
def data_loader_with_workers():
    def run(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(Numbers(), 2, shuffle=True, num_workers=2, multiprocessing_context="fork")
        seen = []
        for _ in range(2):
            for x, pids in loader:
                assert os.getpid() not in pids.tolist()
                optimizer.zero_grad()
                loss = model(x).square().mean()
                loss.backward()
                optimizer.step()
                seen += [x, loss]
        return seen

    return nn.Linear(4, 2), run
