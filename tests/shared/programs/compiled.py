"""Compiled code and higher-order operators."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

from programs import program


class Counted:
    """A backend that runs what dynamo captured as it is, and counts compilations and runs."""

    def __init__(self):
        self.compilations = self.runs = 0

    def __call__(self, graph, examples):
        self.compilations += 1

        def run(*args):
            self.runs += 1
            return graph(*args)

        return run


class Network(nn.Module):
    def __init__(self, fullgraph=True):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(3, 8), nn.ReLU(inplace=True), nn.Dropout(0.1))
        self.second, self.fullgraph = nn.Linear(8, 1), fullgraph

    def forward(self, x):
        y = self.first(x)
        if not self.fullgraph:
            torch._dynamo.graph_break()
        return self.second(y)


@program(fullgraph=True, with_breaks=False)
def compiled_model(fullgraph):
    """As many compilations and runs, and `fullgraph=True` still works when first called under a monitor."""

    def run(model):
        torch._dynamo.reset()
        backend = Counted()
        compiled = torch.compile(model, backend=backend, fullgraph=fullgraph)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for rows in (4, 4, 4, 7, 9):
            optimizer.zero_grad()
            loss = compiled(torch.randn(rows, 3)).square().sum()
            loss.backward()
            optimizer.step()
            losses.append(loss)
        assert backend.runs >= 5
        return losses, backend.compilations, backend.runs, [p.grad for p in model.parameters()]

    return Network(fullgraph), run


@program(compile_method="method", a_function="function", the_optimizer="optimizer")
def compiled_in_parts(part):
    def run(model):
        torch._dynamo.reset()
        backend = Counted()
        optimizer = torch.optim.Adam(model.parameters())
        call, step = model, optimizer.step
        if part == "method":
            model.compile(backend=backend)
        elif part == "function":
            call = torch.compile(lambda x: model(x).sin(), backend=backend)
        else:
            step = torch.compile(lambda: optimizer.step(), backend=backend)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = call(torch.randn(4, 3)).square().sum()
            loss.backward()
            step()
            losses.append(loss)
        assert backend.runs >= 3
        return losses, backend.compilations, backend.runs

    return Network(), run


@program()
def compiled_by_inductor():
    def run(model):
        torch._dynamo.reset()
        compiled = torch.compile(model, fullgraph=True)
        x = torch.randn(4, 3)
        y = compiled(x)
        y.square().sum().backward()
        return y, [p.grad for p in model.parameters()]

    return nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 1)), run


@program("higher_order.cond")
def cond():
    def run(model):
        torch._dynamo.reset()
        x = torch.randn(3, requires_grad=True)
        y = [torch.cond(p, lambda x: x.sin(), lambda x: x.cos(), (x,)) for p in (x.sum() > 0, x.sum() <= 0)]
        sum(y).sum().backward()
        return y, x.grad

    return None, run


@program("higher_order.flex_attention")
def flexible_attention():
    def run(model):
        torch._dynamo.reset()
        q = torch.randn(1, 2, 16, 8)
        return flex_attention(q, q, q, score_mod=lambda score, b, h, i, j: score + (i - j))

    return None, run
