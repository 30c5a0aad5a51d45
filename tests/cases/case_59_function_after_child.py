"""Functional ops that follow a child module inside a parent's forward get booked on the child."""

import torch
import torch.nn as nn

GROUP = "f"
CAUSE = "tracker sets 'current module' in a pre-hook and never restores the parent when the child returns"


EXPECT = {
    "kind": "attribution",
    "ops": [
        ["aten.addmm.default", "child.lin"],
        ["aten.relu.default", "child"],
        ["aten._softmax.default", "child"],
        ["aten.mul.Tensor", ""],
        ["aten.sum.default", None],
    ],
}


class Child(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        return torch.relu(self.lin(x)).softmax(-1)


class Parent(nn.Module):
    def __init__(self):
        super().__init__()
        self.child = Child()

    def forward(self, x):
        return self.child(x) * 2.0


def build():
    torch.manual_seed(59)
    model = Parent()
    x = torch.randn(2, 4)

    def run(m):
        m(x).sum().backward()

    return model, run
