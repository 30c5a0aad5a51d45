"""forward(inputs_embeds) multiplies the caller's embeddings by sqrt(d) in place."""

import torch
import torch.nn as nn

GROUP = "e"
CAUSE = "`embeds *= scale` writes the argument: a second call scales twice"


EXPECT = {
    "kind": "caller-tensor-overwritten",
    "raises": None,
    "silent": True,
    "op": "aten.mul_.Tensor",
    "module": "enc",
    "phase": "forward",
    "line": r"embeds \*= self\.scale",
    "target": "argument `embeds`",
    "dtype": "torch.float32",
    "times": 2,
}


class Enc(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.scale, self.lin = d**0.5, nn.Linear(d, d)

    def forward(self, embeds):
        embeds *= self.scale
        return torch.tanh(self.lin(embeds))


def build():
    torch.manual_seed(53)
    model = nn.Module()
    model.enc = Enc(4)
    e = torch.randn(2, 3, 4)

    def run(m):
        x = e.clone()
        with torch.no_grad():
            return m.enc(x), m.enc(x)

    return model, run
