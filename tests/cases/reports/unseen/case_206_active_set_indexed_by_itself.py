"""A batched line search keeps a mask of unfinished samples and updates it through itself: refused."""

import torch
from torch import nn

GROUP = "a"
CAUSE = "`active[active] = ...` uses the written tensor as its own index, source and destination are the same memory"
REPORT = "khorrams/IGOS_pp#2"


class Energy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1) + 0.5 * x.pow(2).sum(-1)


def line_search(model, x, direction, step):
    base = model(x)
    active = torch.ones(len(x), dtype=torch.bool)
    slope = direction.pow(2).sum(-1)
    while active.any() and step.max() > 1e-3:
        trial = model(x[active] - step[active, None] * direction[active])
        active[active] = trial > base[active] - 1e-2 * step[active] * slope[active]
        step[active] *= 0.5
    return step


EXPECT = {"kind": "operands-overlap", "raises": r"some elements of the input tensor and the written-to tensor",
          "op": "aten.index_put_.default", "module": None, "line": r"active\[active\] = trial",
          "target": "active, which is also the index", "dtype": "torch.bool"}


def build():
    torch.manual_seed(206)
    model, x = Energy(), torch.randn(4, 3)

    def run(m):
        x.requires_grad_(True)
        (grad,) = torch.autograd.grad(m(x).sum(), x)
        with torch.no_grad():
            return line_search(m, x.detach(), grad, torch.full((4,), 8.0))
    return model, run


if __name__ == "__main__":
    model, run = build()
    try:
        run(model)
        print("no error")
    except RuntimeError as e:
        print("raised:", str(e)[:160])
