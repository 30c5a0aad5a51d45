"""Routing by Gumbel noise in bfloat16: a NaN every few hundred draws, never in float32."""

import torch
import torch.nn as nn
import torch.nn.functional as F

GROUP = "c"
CAUSE = (
    "a uniform draw rounds to exactly 1.0 in bfloat16: -log(-log(1)) is +inf, and the softmax of a row "
    "with +inf is NaN"
)
REPORT = "pytorch/pytorch#22442"


class Gate(nn.Module):
    def __init__(self, d, n):
        super().__init__()
        self.score = nn.Linear(d, n)

    def forward(self, x):
        s = self.score(x)
        u = torch.rand(s.shape).to(s.dtype)
        noise = -torch.log(-torch.log(u + 1e-9))
        return F.softmax((s + noise) / 0.7, dim=-1)


class Mixture(nn.Module):
    def __init__(self, d=6, n=8):
        super().__init__()
        self.gate = Gate(d, n)
        self.expert = nn.ModuleList(nn.Linear(d, d) for _ in range(n))

    def forward(self, x):
        w = self.gate(x)
        return sum(w[:, i:i + 1] * e(x) for i, e in enumerate(self.expert))


EXPECT = {"kind": "first-nonfinite", "what": "nan (made of inf)", "op": "aten._softmax.default", "module": "gate",
          "phase": "forward", "input_finite": False, "line": r"F\.softmax\(\(s \+ noise\) / 0\.7",
          "first_inf": {"op": "aten.log.default", "module": "gate", "phase": "forward", "input_finite": True,
                        "line": r"noise = -torch\.log\(-torch\.log", "deliberate": False},
          "step": 2, "loss_finite": False, "reaches": "loss, gradients, parameters",
          "fix": "u is exactly 1 after rounding to bfloat16, log(-log(1)) is -inf: draw the noise in float32 / clamp u"}


def build():
    torch.manual_seed(319)
    model = Mixture().bfloat16()
    x = torch.randn(5, 6).bfloat16()

    def run(m):
        opt = torch.optim.SGD(m.parameters(), lr=1e-2)
        losses = []
        for _ in range(8):
            opt.zero_grad()
            loss = (m(x) - x).float().pow(2).mean()
            loss.backward()
            opt.step()
            losses.append(loss.detach())
        return torch.stack(losses)
    return model, run


if __name__ == "__main__":
    model, run = build()
    print("losses", run(model).tolist())
