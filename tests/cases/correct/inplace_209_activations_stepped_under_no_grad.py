"""Repaired 209: the hand-written step on the leaf runs under no_grad, and its gradient is zeroed in place."""

import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {"correct": True}


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
        with torch.no_grad():
            act -= rate * act.grad
        act.grad.zero_()
    return act.detach()


def build():
    torch.manual_seed(209)
    model, x = Block(), torch.randn(3, 4)

    def run(m):
        m.requires_grad_(False)
        return fit_activation(m, x, m(x) + 0.1), x
    return model, run


if __name__ == "__main__":
    model, run = build()
    got, x = run(model)
    start, goal = torch.relu(model.up(x)), model(x) + 0.1
    act = start
    for _ in range(3):
        leaf = act.clone().requires_grad_()
        (g,) = torch.autograd.grad(F.mse_loss(model.down(leaf), goal) + 0.1 * F.mse_loss(leaf, start), leaf)
        act = act - 0.1 * g
    torch.testing.assert_close(got, act)
    print("right")
