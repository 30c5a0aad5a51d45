"""RMS normalisation computed in float16: wrong answers, no NaN anywhere. Large tokens come out as exactly 0."""

import torch
import torch.nn as nn


class Rms(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.gain


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.head = Rms(6), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.norm(x))


EXPECT = {
    "kind": "overflow-then-zero",
    "what": "inf",
    "op": "aten.pow.Tensor_Scalar",
    "module": "norm",
    "phase": "forward",
    "input_finite": True,
    "line": r"x\.pow\(2\)\.mean",
    "swallowed_by": "aten.rsqrt.default",
    "silent": True,
    "reaches": "the result, as zeros",
    "fix": "compute the square in float32",
}


def build():
    torch.manual_seed(108)
    model = Net().half().eval()
    x = (torch.randn(3, 6)).half()
    x[1] *= 900

    def run(m):
        with torch.no_grad():
            return m(x)

    return model, run


if __name__ == "__main__":
    model, run = build()
    y = run(model)
    x = torch.randn(3, 6)
    with torch.no_grad():
        print("float16 row 1:", y[1].tolist(), "= bias:", model.head.bias.tolist())
        big = torch.full((1, 6), 900.0)
        print(
            "features of a token of 900s: float16",
            model.norm(big.half())[0].tolist(),
            "float32",
            model.norm.float()(big)[0].tolist(),
        )

GROUP = "c"
CAUSE = "x**2 overflows to inf in float16, rsqrt(inf) is 0, so the token's features vanish; every later value is finite"
