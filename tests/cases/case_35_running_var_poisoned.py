"""Own batch norm: last batch has one sample; training looks fine, evaluation is NaN."""

import torch
import torch.nn as nn

GROUP = "c"
CAUSE = "unbiased variance of one sample goes NaN into the running buffer (in place), invisible until eval"


class Norm1(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.register_buffer("mean_run", torch.zeros(c))
        self.register_buffer("var_run", torch.ones(c))

    def forward(self, x):
        if self.training:
            mu, var = x.mean(0), x.var(0, unbiased=False)
            with torch.no_grad():
                self.mean_run.mul_(0.9).add_(0.1 * mu)
                self.var_run.mul_(0.9).add_(0.1 * x.var(0))
        else:
            mu, var = self.mean_run, self.var_run
        return (x - mu) / torch.sqrt(var + 1e-5)


EXPECT = {
    "kind": "first-nonfinite",
    "what": "nan",
    "op": "aten.var.correction",
    "module": "1",
    "phase": "forward",
    "input_finite": True,
    "line": r"self\.var_run\.mul_\(0\.9\)\.add_",
    "first_inf": None,
    "step": 2,
    "stored_by": {"op": "aten.add_.Tensor", "module": "1", "target": "1.var_run"},
    "loss_finite": True,
}


def build():
    torch.manual_seed(35)
    model = nn.Sequential(nn.Linear(3, 4), Norm1(4), nn.Linear(4, 1))
    data = torch.randn(9, 3)

    def run(m):
        opt = torch.optim.SGD(m.parameters(), lr=0.01)
        losses = []
        for lo in (0, 4, 8):
            loss = m(data[lo : lo + 4]).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        m.eval()
        with torch.no_grad():
            return losses, m(data)

    return model, run
