"""Angle between two rotations from the trace; rounding pushes the cosine slightly above 1."""

import torch
import torch.nn as nn

GROUP = "c"
CAUSE = "acos(1 + 1e-7) is NaN; inputs finite"


class Geo(nn.Module):
    def forward(self, a, b):
        c = ((a * b).sum(dim=(1, 2)) - 1) / 2
        return torch.acos(c)


class Rot(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain, self.geo = nn.Parameter(torch.ones(1)), Geo()

    def forward(self, r):
        return self.geo(r * self.gain, r)


EXPECT = {
    "kind": "first-nonfinite",
    "what": "nan",
    "op": "aten.acos.default",
    "module": "geo",
    "phase": "forward",
    "input_finite": True,
    "line": r"torch\.acos\(c\)",
    "first_inf": None,
}


def build():
    torch.manual_seed(33)
    model = Rot()
    r, _ = torch.linalg.qr(torch.randn(64, 3, 3, generator=torch.Generator().manual_seed(3)))

    def run(m):
        m(r).mean().backward()

    return model, run
