"""Layerwise pruning optimises an activation by hand: the `-=` step on the leaf itself is refused."""

import torch
import torch.nn.functional as F
from torch import nn

GROUP = "a"
CAUSE = "the activation is a leaf that requires grad; an in-place step on it must be hidden from autograd"
REPORT = "BaiTheBest/SparseLLM#13"

EXPECT = {"kind": "inplace-forbidden",
          "raises": r"a leaf Variable that requires grad is being used in an in-place operation", "op_seen": False,
          "blocked_op": "aten.sub_.Tensor", "op": "aten.sub_.Tensor", "module": None,
          "line": r"act -= rate \* act\.grad", "target": "act", "times": 1}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 6), nn.Linear(6, 4)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def fit_activation(block, x, goal, rate=0.1, steps=3):
    act = torch.relu(block.up(x)).detach().requires_grad_(True)
    for _ in range(steps):
        loss = F.mse_loss(block.down(act), goal) + 0.1 * F.mse_loss(act, torch.relu(block.up(x)))
        loss.backward()
        act -= rate * act.grad
        act.grad.zero_()
    return act


def build():
    torch.manual_seed(209)
    model, x = Block(), torch.randn(3, 4)

    def run(m):
        m.requires_grad_(False)
        return fit_activation(m, x, m(x) + 0.1)
    return model, run


if __name__ == "__main__":
    model, run = build()
    try:
        run(model)
        print("no error")
    except RuntimeError as e:
        print("raised:", str(e)[:160])
