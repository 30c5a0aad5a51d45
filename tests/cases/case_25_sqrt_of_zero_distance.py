"""Distance loss written as sqrt of a squared sum; one pair of boxes coincides exactly."""

import torch
import torch.nn as nn

GROUP = "c"
CAUSE = "d sqrt(u)/du is inf at u = 0, and 0 * inf = NaN one op later"


class Offset(nn.Module):
    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(2))

    def forward(self, boxes):
        return boxes + self.shift


class Gap(nn.Module):
    def forward(self, p, q):
        return (p - q).pow(2).sum(-1).sqrt()


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.reg, self.gap = Offset(), Gap()

    def forward(self, b, t):
        return self.gap(self.reg(b), t)


EXPECT = {
    "kind": "first-nonfinite",
    "what": "nan",
    "op": "aten.mul.Tensor",
    "module": "gap",
    "module_basis": "forward node",
    "phase": "backward",
    "input_finite": False,
    "fwd_op": "aten.pow.Tensor_Scalar",
    "line": r"\(p - q\)\.pow\(2\)",
    "first_inf": {
        "op": "aten.div.Tensor",
        "module": "gap",
        "module_basis": "forward node",
        "phase": "backward",
        "fwd_op": "aten.sqrt.default",
    },
    "loss_finite": True,
}


def build():
    torch.manual_seed(25)
    model = Both()
    b = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    t = torch.tensor([[1.0, 2.0], [2.0, 5.0]])

    def run(m):
        m(b, t).mean().backward()

    return model, run
