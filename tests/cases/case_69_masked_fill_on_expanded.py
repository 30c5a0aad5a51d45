"""Marking one cell of an expanded lookup marks the whole row: masked_fill_ differs from masked_fill."""

import warnings

import torch
import torch.nn as nn

GROUP = "e"
CAUSE = (
    "the written tensor has stride 0 along a dimension; masked_fill_ still accepts that in torch 2.13 (warning only)"
)


EXPECT = {
    "kind": "internal-overlap-write",
    "raises": None,
    "silent": True,
    "op": "aten.masked_fill_.Scalar",
    "module": "",
    "phase": "forward",
    "line": r"wide\.masked_fill_\(hit, 9\.0\)",
    "target": "buffer base, through expand (stride 0 in dim 1)",
    "strides": (1, 0),
}


class Marker(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("base", torch.tensor([[0.0], [1.0]]))

    def forward(self, hit):
        wide = self.base.expand(2, 4)
        wide.masked_fill_(hit, 9.0)
        return wide


def build():
    torch.manual_seed(69)
    model = Marker()
    hit = torch.zeros(2, 4, dtype=torch.bool)
    hit[0, 1] = True

    def run(m):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return m(hit)

    return model, run
