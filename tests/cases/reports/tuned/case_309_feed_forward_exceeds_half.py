"""Encoder trained in bfloat16, run in float16: one outlier token comes out as NaN after the second block."""

import torch
import torch.nn as nn

GROUP = "c"
CAUSE = (
    "the feed-forward output projection exceeds 65504 for one token: inf; the next root-mean-square norm "
    "gives inf * 0 = NaN"
)
REPORT = "huggingface/transformers#5651"


class Rms(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(d))

    def forward(self, x):
        scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)
        x = x * scale
        return self.gain * x.to(self.gain.dtype)


class FeedForward(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.wi, self.wo = nn.Linear(d, h, bias=False), nn.Linear(h, d, bias=False)

    def forward(self, x):
        return self.wo(torch.relu(self.wi(x)))


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.ff = Rms(d), FeedForward(d, 16)

    def forward(self, x):
        return x + self.ff(self.norm(x))


class Encoder(nn.Module):
    def __init__(self, d=6):
        super().__init__()
        self.embed = nn.Embedding(9, d)
        self.block = nn.ModuleList(Block(d) for _ in range(3))
        self.final = Rms(d)

    def forward(self, ids):
        x = self.embed(ids)
        for b in self.block:
            x = b(x)
        return self.final(x)


EXPECT = {"kind": "first-nonfinite", "what": "nan (made of inf)", "op": "aten.mul.Tensor", "module": "block.2.norm",
          "phase": "forward", "input_finite": False, "line": r"x = x \* scale",
          "first_inf": {"op": "aten.mm.default", "module": "block.1.ff.wo", "phase": "forward", "input_finite": True,
                        "line": r"self\.wo\(torch\.relu"},
          "reaches": "the result",
          "fix": "float16 overflow in the output projection: keep wo in float32, clamp, or use bfloat16"}


def build():
    torch.manual_seed(309)
    model = Encoder()
    with torch.no_grad():
        model.block[1].ff.wo.weight[3] = 13000.0      # one massive feature, as such checkpoints have
        model.block[1].ff.wi.weight[:, 3] = 0.0
    model = model.half().eval()
    ids = torch.tensor([1, 4, 7, 2])

    def run(m):
        with torch.no_grad():
            return m(ids)
    return model, run


if __name__ == "__main__":
    model, run = build()
    print("float16:", run(model).tolist())
    print("float32:", run(model.float()).tolist())
