"""De-normalising an image by iterating over its channels and scaling each in place."""

import torch
import torch.nn as nn

GROUP = "a"
CAUSE = "iterating a tensor is unbind (many views from one op); autograd refuses an in-place op on such a view"


class Recolour(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Conv2d(3, 3, 1)

    def forward(self, img):
        y = self.mix(img)
        for plane, s, c in zip(y[0], (0.2, 0.3, 0.4), (0.5, 0.4, 0.3), strict=True):
            plane.mul_(s).add_(c)
        return y


EXPECT = {
    "kind": "inplace-forbidden",
    "raises": r"is a view and is being modified inplace",
    "op_seen": False,
    "blocked_op": "aten.mul_.Tensor",
    "last_op": "aten.unbind.int",
    "module": "",
    "phase": "forward",
    "line": r"plane\.mul_\(s\)\.add_\(c\)",
    "note": "the error comes from autograd BEFORE dispatch: a dispatch tracer never sees mul_, its last op is unbind",
}


def build():
    torch.manual_seed(15)
    model = Recolour()
    img = torch.rand(1, 3, 4, 4)

    def run(m):
        m(img).sum().backward()

    return model, run
