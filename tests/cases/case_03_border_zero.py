"""A weight map has its border zeroed by slice assignment after ReLU, only on one code path."""

import torch
import torch.nn as nn

GROUP = "a"
CAUSE = "four slice assignments write into the saved ReLU result (first of them is the culprit)"


class Saliency(nn.Module):
    def __init__(self, trim):
        super().__init__()
        self.trim = trim
        self.score = nn.Sequential(nn.Conv2d(4, 1, 1), nn.ReLU())

    def forward(self, f):
        s = self.score(f)
        if self.trim:
            s[..., 0] = 0
            s[..., -1] = 0
            s[..., 0, :] = 0
            s[..., -1, :] = 0
        return (f * s).sum(dim=(2, 3))


EXPECT = {
    "kind": "inplace-after-save",
    "raises": r"modified by an inplace operation",
    "op": "aten.fill_.Tensor",
    "module": "",
    "phase": "forward",
    "line": r"s\[\.\.\., 0\] = 0",
    "writes": 4,
    "victim_op": "aten.relu.default",
    "victim_module": "score.1",
}


def build():
    torch.manual_seed(3)
    model = Saliency(trim=True)
    f = torch.randn(2, 4, 6, 6)

    def run(m):
        m(f).pow(2).sum().backward()

    return model, run
