"""In-place ReLU followed by in-place Dropout in an MLP block."""

import torch
import torch.nn as nn

GROUP = "a"
CAUSE = "in-place dropout multiplies the ReLU result that ReluBackward0 saved"


EXPECT = {
    "kind": "inplace-after-save",
    "raises": r"modified by an inplace operation",
    "op": "aten.mul_.Tensor",
    "module": "2",
    "phase": "forward",
    "line": r"m\(x\)\.sum\(\)\.backward\(\)",
    "victim_op": "aten.relu_.default",
    "victim_module": "1",
    "note": "the write comes from torch's own F.dropout, the user's nearest line is the call of the model",
}


def build():
    torch.manual_seed(9)
    model = nn.Sequential(
        nn.Linear(3, 7),
        nn.ReLU(inplace=True),
        nn.Dropout(0.5, inplace=True),
        nn.Linear(7, 2),
        nn.Dropout(0.5, inplace=True),
    )
    x = torch.rand(4, 3)

    def run(m):
        m(x).sum().backward()

    return model, run
