"""An op returns several tensors; a tracer that looks at `isinstance(out, Tensor)` only misses them all."""

import torch
import torch.nn as nn

GROUP = "f"
CAUSE = "split/unbind/topk/layer_norm return tuples or lists"


EXPECT = {
    "kind": "outputs",
    "counts": [
        ["aten.split.Tensor", 3],
        ["aten.topk.default", 2],
        ["aten.native_layer_norm.default", 3],
        ["aten.unbind.int", 2],
    ],
    "module": "",
    "note": "every element needs its own statistics; integer outputs (topk indices) and None outputs must not crash",
}


class Many(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(6)

    def forward(self, x):
        a, b, c = self.norm(x).chunk(3, -1)
        v, _ = b.topk(1, -1)
        p, q = torch.unbind(a, -1)
        return v.squeeze(-1) + p * q + c.sum(-1)


def build():
    torch.manual_seed(63)
    model = Many()
    x = torch.randn(4, 6)

    def run(m):
        m(x).sum().backward()

    return model, run
