"""Repaired 213: the state of the best epoch is deep-copied before training goes on."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {"correct": True}


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift, self.out = nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, x):
        return self.out(torch.tanh(self.lift(x)))


def fit(model, train, held_out, epochs=6):
    opt = torch.optim.SGD(model.parameters(), lr=0.5)
    best, least = None, float("inf")
    for _ in range(epochs):
        opt.zero_grad()
        F.mse_loss(model(train[0]), train[1]).backward()
        opt.step()
        with torch.no_grad():
            loss = F.mse_loss(model(held_out[0]), held_out[1]).item()
        if loss < least:
            best, least = copy.deepcopy(model.state_dict()), loss
    model.load_state_dict(best)
    with torch.no_grad():
        return least, F.mse_loss(model(held_out[0]), held_out[1]).item()


def build():
    torch.manual_seed(213)
    model = Regressor()
    train, held_out = (torch.randn(4, 3), torch.randn(4, 1)), (torch.randn(8, 3), torch.randn(8, 1))

    def run(m):
        return fit(m, train, held_out)
    return model, run


if __name__ == "__main__":
    model, run = build()
    least, loaded = run(model)
    assert least == loaded, (least, loaded)
    print("right")
