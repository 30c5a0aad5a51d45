"""Repaired 207: the scratch is a buffer made in the constructor; warm-up and requests may both fill it."""

import torch
from torch import nn

EXPECT = {"correct": True}


class Padded(nn.Module):
    def __init__(self, width=4, rows=6):
        super().__init__()
        self.lin = nn.Linear(width, width)
        self.register_buffer("scratch", torch.zeros(rows, width), persistent=False)

    def forward(self, x):
        self.scratch[:len(x)] = x
        return torch.relu(self.lin(self.scratch))[:len(x)]


class Server(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Padded(), Padded()])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def build():
    torch.manual_seed(207)
    model = Server().eval()
    warm, requests = torch.zeros(2, 4), [torch.randn(3, 4), torch.randn(2, 4)]

    def run(m):
        with torch.inference_mode():
            m(warm)
        with torch.no_grad():
            return [m(r) for r in requests], requests
    return model, run


if __name__ == "__main__":
    model, run = build()
    got, requests = run(model)
    for g, x in zip(got, requests):
        for layer in model.layers:
            x = torch.relu(layer.lin(x))
        torch.testing.assert_close(g, x)
    print("right")
