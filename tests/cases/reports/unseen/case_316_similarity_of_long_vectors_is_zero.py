"""Search with float16 embeddings: identical vectors get similarity 0, no NaN and no inf in any result."""

import torch
import torch.nn as nn

GROUP = "c"
CAUSE = "the product of the two squared norms exceeds 65504: inf, whose reciprocal root is 0; the similarity vanishes"
REPORT = "pytorch/pytorch#69512"


class Cosine(nn.Module):
    def forward(self, a, b):
        dot = (a * b).sum(-1)
        energy = (a * a).sum(-1) * (b * b).sum(-1)
        return dot * torch.rsqrt(energy.clamp_min(1e-4))


class Finder(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.embed, self.similarity = nn.Embedding(6, d), Cosine()

    def forward(self, query):
        e = self.embed.weight
        return self.similarity(self.embed(query)[:, None], e[None]).topk(2, -1)


EXPECT = {"kind": "overflow-then-zero", "what": "inf", "op": "aten.mul.Tensor", "module": "similarity",
          "phase": "forward", "input_finite": True, "line": r"energy = \(a \* a\)\.sum\(-1\) \* \(b \* b\)",
          "swallowed_by": "aten.rsqrt.default", "silent": True, "reaches": "the result, as zeros",
          "fix": "float16 overflow in the product of squared norms: divide by each norm, or compute in float32"}


def build():
    torch.manual_seed(316)
    model = Finder()
    with torch.no_grad():
        model.embed.weight[2:4] *= 3.5
    model = model.half().eval()

    def run(m):
        with torch.no_grad():
            return m(torch.tensor([0, 2]))
    return model, run


if __name__ == "__main__":
    model, run = build()
    print("float16", [t.tolist() for t in run(model)])
    print("float32", [t.tolist() for t in run(model.float())])
