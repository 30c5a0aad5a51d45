"""Repaired 220: the output buffer is reused, but each result is copied out of it before the next call."""

import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {"correct": True}


class Deployed(nn.Module):
    def __init__(self, width=4, largest=3):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, width))
        self.register_buffer("room", torch.zeros(largest, 5), persistent=False)

    def forward(self, x):
        out = self.room[:len(x)]
        torch.mm(x, self.weight.T, out=out)
        return out.clone()


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.deployed = Deployed()

    def forward(self, x):
        return self.deployed(x / x.norm(dim=1, keepdim=True))


def build():
    torch.manual_seed(220)
    model, left, right = Encoder().eval(), torch.randn(2, 4), torch.randn(2, 4)

    def run(m):
        with torch.no_grad():
            a, b = m(left), m(right)
            return F.cosine_similarity(a, b), left, right
    return model, run


if __name__ == "__main__":
    model, run = build()
    got, left, right = run(model)
    w = model.deployed.weight.detach()
    want = F.cosine_similarity(left @ w.T, right @ w.T)
    torch.testing.assert_close(got, want)
    print("right")
