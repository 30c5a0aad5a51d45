"""Graph convolution with signed edge weights: NaN rows, though the inf of isolated nodes is cleared as always."""

import torch
import torch.nn as nn


class Conv(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.lin = nn.Linear(d, d, bias=False)

    def forward(self, x, src, dst, w):
        deg = torch.zeros(x.shape[0]).scatter_add(0, dst, w)
        inv = deg.pow(-0.5)
        inv[inv == float("inf")] = 0
        norm = inv[src] * w * inv[dst]
        h = self.lin(x)
        return torch.zeros_like(h).index_add(0, dst, norm[:, None] * h[src])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = Conv(4), Conv(4)

    def forward(self, x, src, dst, w):
        return self.two(torch.relu(self.one(x, src, dst, w)), src, dst, w)


EXPECT = {
    "kind": "first-nonfinite",
    "what": "nan",
    "op": "aten.pow.Tensor_Scalar",
    "module": "one",
    "phase": "forward",
    "input_finite": True,
    "line": r"inv = deg\.pow\(-0\.5\)",
    "not": "the inf of the isolated node, which is cleared by index_put_ / masked assignment",
    "reaches": "loss, gradient",
    "fix": "the base of the power is negative: degree of absolute weights",
}


def build():
    torch.manual_seed(110)
    model = Net()
    x = torch.randn(5, 4)
    src, dst = torch.tensor([0, 1, 2, 3, 0]), torch.tensor([1, 2, 3, 0, 2])
    w = torch.tensor([1.0, 0.5, 1.0, 1.0, -0.8])

    def run(m):
        loss = m(x, src, dst, w).pow(2).mean()
        loss.backward()
        return loss

    return model, run


if __name__ == "__main__":
    model, run = build()
    print("loss", float(run(model).detach()))

GROUP = "c"
CAUSE = "a node's weighted degree is negative and its power -0.5 is NaN; only the inf of degree 0 (another node, harmless) is reset to 0"
