"""Top-down pyramid adds the coarser map with += onto a map that ReLU saved as its own result."""

import torch
import torch.nn as nn
import torch.nn.functional as F

GROUP = "a"
CAUSE = "`laterals[k] += up(...)` overwrites the ReLU output that ReluBackward0 needs"


class Pyramid(nn.Module):
    def __init__(self):
        super().__init__()
        self.side = nn.ModuleList(nn.Sequential(nn.Conv2d(c, 4, 1), nn.ReLU()) for c in (3, 5))

    def forward(self, fine, coarse):
        maps = [self.side[0](fine), self.side[1](coarse)]
        maps[0] += F.interpolate(maps[1], size=maps[0].shape[-2:], mode="nearest")
        return maps[0].mean() + maps[1].mean()


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.pyramid = Pyramid()

    def forward(self, fine, coarse):
        return self.pyramid(fine, coarse)


EXPECT = {
    "kind": "inplace-after-save",
    "raises": r"modified by an inplace operation",
    "op": "aten.add_.Tensor",
    "module": "pyramid",
    "phase": "forward",
    "line": r"maps\[0\] \+= F\.interpolate",
    "victim_op": "aten.relu.default",
    "victim_module": "pyramid.side.0.1",
}


def build():
    torch.manual_seed(1)
    model = Counter()
    fine, coarse = torch.randn(2, 3, 8, 8), torch.randn(2, 5, 4, 4)

    def run(m):
        m(fine, coarse).backward()

    return model, run
