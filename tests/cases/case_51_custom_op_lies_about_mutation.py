"""A custom op scales its argument in place but declares that it mutates nothing."""

import torch
import torch.nn as nn

GROUP = "e"
CAUSE = "mutates_args=() although the body writes x; the schema hides the write from every tracer"


@torch.library.custom_op("casefiftyone::soften", mutates_args=())
def soften(x: torch.Tensor, k: float) -> torch.Tensor:
    x.mul_(k)
    return x.clone()


@soften.register_fake
def _(x, k):
    return torch.empty_like(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)

    def forward(self, x):
        h = torch.sigmoid(self.lin(x))
        with torch.no_grad():
            aux = soften(h, 0.1)
        return h.sum() + aux.sum()


EXPECT = {
    "kind": "undeclared-write",
    "raises": r"modified by an inplace operation",
    "op": "casefiftyone.soften.default",
    "module": "",
    "phase": "forward",
    "line": r"aux = soften\(h, 0\.1\)",
    "argument": "x",
    "schema_says_write": False,
    "victim_op": "aten.sigmoid.default",
    "victim_module": "",
    "naive_mode_raises": False,
    "trap": "plain torch bumps the version through the op's inner mul_ and raises; under a TorchDispatchMode the inner call "
    "does not bump it: a naive monitor turns this error into a silent wrong gradient",
    "detect": "compare the arguments' contents before and after the op",
}


def build():
    torch.manual_seed(51)
    model = Net()
    x = torch.randn(4, 3)

    def run(m):
        m(x).backward()
        return m.lin.weight.grad.clone()

    return model, run
