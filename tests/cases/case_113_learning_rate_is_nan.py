"""No warm-up steps: losses and gradients are fine, all weights are NaN after the first step."""

import warnings

import numpy as np
import torch
import torch.nn as nn


def rate(step, warmup):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(min(np.float64(step) / np.float64(warmup), np.float64(1.0)))


EXPECT = {
    "kind": "first-nonfinite",
    "what": "nan",
    "op": "aten.add_.Tensor",
    "module": None,
    "phase": "optimizer",
    "input_finite": True,
    "line": r"opt\.step\(\)",
    "step": 0,
    "reaches": "parameters",
    "not": "on purpose",
    "fix": "alpha / the learning rate is NaN",
}


def build():
    torch.manual_seed(112)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    x, y = torch.randn(5, 4), torch.randn(5, 2)

    def run(m):
        opt = torch.optim.SGD(m.parameters(), lr=0.1)
        sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: rate(s, 0))
        for _ in range(2):
            opt.zero_grad()
            loss = (m(x) - y).pow(2).mean()
            loss.backward()
            opt.step()
            sched.step()
        return loss

    return model, run


if __name__ == "__main__":
    model, run = build()
    print("loss", float(run(model).detach()), "NaN weights", [bool(p.isnan().all()) for p in model.parameters()])

GROUP = "c"
CAUSE = "the schedule divides 0 by 0 with numpy floats (a warning, no error): the learning rate itself is NaN"
