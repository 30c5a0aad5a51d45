"""Repaired 201: the activation is not in place, so the full backward hook on the layer before it works."""

import torch
from torch import nn

EXPECT = {"correct": True}


class Features(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.act = nn.Conv1d(2, 4, 3, padding=1), nn.ReLU()

    def forward(self, x):
        return self.act(self.conv(x))


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.features, self.head = Features(), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.features(x).mean(-1))


def build():
    torch.manual_seed(201)
    model, x = Classifier(), torch.randn(2, 2, 6)
    seen = {}
    model.features.conv.register_full_backward_hook(lambda mod, gin, gout: seen.update(grad=gout[0]))

    def run(m):
        m(x)[:, 0].sum().backward()
        return seen["grad"].mean(-1), x
    return model, run


if __name__ == "__main__":
    model, run = build()
    got, x = run(model)
    conv = model.features.conv(x)
    (want,) = torch.autograd.grad(model.head(torch.relu(conv).mean(-1))[:, 0].sum(), conv)
    torch.testing.assert_close(got, want.mean(-1))
    print("right")
