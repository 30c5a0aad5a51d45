"""A deployed encoder writes into a preallocated output buffer: the similarity of any two inputs comes out as 1."""

import torch
import torch.nn.functional as F
from torch import nn

GROUP = "e"
CAUSE = "each call returns a slice of the same buffer; the second call overwrites the first result"
REPORT = "ROCm/torch_migraphx#247"


class Deployed(nn.Module):
    def __init__(self, width=4, largest=3):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, width))
        self.register_buffer("room", torch.zeros(largest, 5), persistent=False)

    def forward(self, x):
        out = self.room[:len(x)]
        torch.mm(x, self.weight.T, out=out)
        return out


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.deployed = Deployed()

    def forward(self, x):
        return self.deployed(x / x.norm(dim=1, keepdim=True))


EXPECT = {"kind": "alias-overwritten", "raises": None, "silent": True, "op": "aten.mm.out", "module": "deployed",
          "phase": "forward", "line": r"torch\.mm\(x, self\.weight\.T, out=out\)",
          "target": "the result of the first call, a slice of buffer deployed.room", "times": 1,
          "created_by": {"op": "aten.slice.Tensor", "line": r"out = self\.room\[:len\(x\)\]"}}


def build():
    torch.manual_seed(220)
    model, left, right = Encoder().eval(), torch.randn(2, 4), torch.randn(2, 4)

    def run(m):
        with torch.no_grad():
            a, b = m(left), m(right)
            return F.cosine_similarity(a, b).tolist()
    return model, run


if __name__ == "__main__":
    model, run = build()
    print("similarities of unrelated inputs (should not all be 1):", run(model))
