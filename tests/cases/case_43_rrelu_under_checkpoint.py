"""Randomised leaky ReLU inside non-reentrant activation checkpointing: silently wrong gradients (torch bug, still in 2.13)."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

GROUP = "d"
CAUSE = "rrelu saves its noise tensor BEFORE the kernel fills it; checkpoint's early stop captures the empty buffer"


EXPECT = {
    "kind": "uninitialised-read",
    "origin_op": "aten.empty_like.default",
    "module": "act",
    "phase": "backward",
    "recompute": True,
    "line": r"F\.rrelu\(",
    "writer_op": "aten.rrelu_with_noise.default",
    "first_reader": {"op": "aten.rrelu_with_noise_backward.default", "phase": "backward"},
    "raises": None,
    "silent": True,
    "note": "run to run different; without checkpointing the same step is right",
}


class Noisy(nn.Module):
    def forward(self, x):
        return F.rrelu(x, 0.1, 0.9, training=True)


class Net(nn.Module):
    def __init__(self, ckpt):
        super().__init__()
        self.ckpt, self.act = ckpt, Noisy()
        self.scale = nn.Parameter(torch.linspace(-1, 1, 64))

    def forward(self, x):
        h = x * self.scale
        return checkpoint(self.act, h, use_reentrant=False) if self.ckpt else self.act(h)


def build(ckpt=True):
    torch.manual_seed(43)
    model = Net(ckpt)
    x = torch.rand(64) + 0.5

    def run(m):
        torch.manual_seed(7)
        m(x).sum().backward()
        return m.scale.grad.clone()

    return model, run
