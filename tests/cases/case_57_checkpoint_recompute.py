"""Activation checkpointing runs each block's forward again inside backward; naive module tracking double counts or crashes."""

import torch
import torch.nn as nn
from torch.utils.checkpoint import checkpoint

GROUP = "f"
CAUSE = "forward hooks fire during backward (recompute), so 'entering the same module twice' is normal"


EXPECT = {
    "kind": "recompute",
    "modules": ["blocks.0.lin", "blocks.1.lin"],
    "op": "aten.addmm.default",
    "per_module": {"forward": 1, "backward_recompute": 1},
    "order_in_backward": ["blocks.1.lin", "blocks.0.lin"],
    "note": "recomputed ops: phase backward, flagged recompute, attributed to the module, not counted as a second training forward; "
    "NaN search and trace diff must not treat them as new forward work",
}


class Blk(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        return torch.tanh(self.lin(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Blk(), Blk()])
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        for b in self.blocks:
            x = checkpoint(b, x, use_reentrant=False)
        return self.head(x)


def build():
    torch.manual_seed(57)
    model = Net()
    x = torch.randn(3, 4)

    def run(m):
        m(x).sum().backward()

    return model, run
