"""Heading by atan2, masked afterwards: padded agents are at (0, 0), where torch's own backward clears its inf to 0."""
import torch
import torch.nn as nn

EXPECT = {"correct": True}


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.Tanh())
        self.step = nn.Linear(8, 2)

    def forward(self, x, real):
        return self.step(self.body(x)) * real[:, None]


class HeadingLoss(nn.Module):
    def forward(self, move, heading, real):
        angle = torch.atan2(move[:, 1], move[:, 0])
        return (1 - torch.cos(angle - heading))[real].mean()


def build():
    torch.manual_seed(341)
    model = nn.ModuleDict({"net": Forecaster(), "loss": HeadingLoss()})
    batches = [(torch.randn(5, 4), torch.rand(5) * 3, torch.arange(5) < n) for n in (5, 3, 5)]

    def run(m):
        opt = torch.optim.SGD(m.parameters(), lr=0.05)
        losses = []
        for x, heading, real in batches:
            opt.zero_grad()
            loss = m["loss"](m["net"](x, real), heading, real)
            loss.backward()
            opt.step()
            losses.append(loss.detach())
        return torch.stack(losses)
    return model, run


if __name__ == "__main__":
    model, run = build()
    assert run(model).isfinite().all()
    assert all(p.isfinite().all() for p in model.parameters())
