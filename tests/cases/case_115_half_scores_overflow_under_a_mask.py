"""Attention in float16 with a causal mask that is added: NaN rows as soon as queries and keys are large."""

import torch
import torch.nn as nn


class Attention(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(d, d, bias=False) for _ in range(3))

    def forward(self, x, mask):
        s = self.q(x) @ self.k(x).transpose(-1, -2)
        a = (s / x.shape[-1] ** 0.5 + mask).softmax(-1)
        return a @ self.v(x)


class Net(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.attend, self.head = Attention(d), nn.Linear(d, 3)

    def forward(self, x):
        n = x.shape[1]
        mask = torch.zeros(n, n, dtype=x.dtype).masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), float("-inf"))
        return self.head(x + self.attend(x, mask))


EXPECT = {
    "kind": "first-nonfinite",
    "what": "inf",
    "op": "aten.bmm.default",
    "module": "attend",
    "phase": "forward",
    "input_finite": True,
    "line": r"self\.q\(x\) @ self\.k\(x\)",
    "then": "NaN in add (mask) or softmax, because of the +Inf",
    "not": "the mask",
    "reaches": "the returned value (end)",
    "fix": "scale q before the product, or compute scores in float32",
}


def build():
    torch.manual_seed(114)
    model = Net().half().eval()
    x = torch.randn(1, 5, 8)
    x[0, 3] *= 900
    x = x.half()

    def run(m):
        with torch.no_grad():
            return m(x)

    return model, run


if __name__ == "__main__":
    model, run = build()
    print("NaN rows:", run(model).isnan().any(-1))

GROUP = "c"
CAUSE = "q k^T exceeds 65504 before it is scaled; the softmax of a row with +inf is NaN (and +inf plus the mask's -inf is NaN). The mask is not at fault"
