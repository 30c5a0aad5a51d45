"""A running metric called between loss and backward masks predictions and labels in place."""

import torch
import torch.nn as nn
import torch.nn.functional as F

GROUP = "a"
CAUSE = "metric's `*=` on its arguments overwrites the tensors mse_loss saved"


class RunningCov:
    def __init__(self):
        self.total = 0.0

    def __call__(self, pred, gold, mask):
        pred *= mask
        gold *= mask
        self.total += ((pred - pred.mean()) * (gold - gold.mean())).sum().item()


class Reg(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
        self.metric = RunningCov()

    def forward(self, x, y, mask):
        out = self.body(x).squeeze(-1)
        loss = F.mse_loss(out, y)
        self.metric(out, y, mask)
        return loss


EXPECT = {
    "kind": "inplace-after-save",
    "raises": r"modified by an inplace operation",
    "op": "aten.mul_.Tensor",
    "module": "",
    "phase": "forward",
    "line": r"pred \*= mask",
    "victim_op": "aten.mse_loss.default",
    "victim_module": "",
    "also": {"op": "aten.mul_.Tensor", "line": r"gold \*= mask", "target": "the caller's label tensor"},
}


def build():
    torch.manual_seed(13)
    model = Reg()
    x, y = torch.randn(6, 4), torch.randn(6)
    mask = torch.tensor([1.0, 1, 1, 1, 0, 0])

    def run(m):
        m(x, y, mask).backward()

    return model, run
