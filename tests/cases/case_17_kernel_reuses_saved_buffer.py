"""A hand-written activation stores its gradient into its own saved input buffer, through raw memory."""

import numpy as np
import torch
import torch.nn as nn

GROUP = "a"
CAUSE = "the custom backward overwrites a buffer that the op upstream (exp) saved as its result; no aten op, no version bump"


class SquareReuse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return a * a

    @staticmethod
    def backward(ctx, g):
        (a,) = ctx.saved_tensors
        raw = a.detach().numpy()
        np.multiply(2.0 * raw, g.numpy(), out=raw)  # memory trick: the gradient lands in a
        return a.detach().clone()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)

    def forward(self, x):
        return SquareReuse.apply(torch.exp(self.lin(x)))


EXPECT = {
    "kind": "write-outside-dispatcher",
    "raises": None,
    "silent": True,
    "dispatch_sees_write": False,
    "victim_op": "aten.exp.default",
    "victim_module": "",
    "phase": "backward",
    "detect": "the content of exp's saved result differs between two dispatched ops with no mutating op in between",
}


def build():
    torch.manual_seed(17)
    model = Net()
    x = torch.randn(4, 3)

    def run(m):
        m(x).sum().backward()

    return model, run
