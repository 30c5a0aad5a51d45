"""Pose refinement from an identity head: one sample is already exact, and the first step makes all weights NaN."""

import torch
import torch.nn as nn
import torch.nn.functional as F

GROUP = "c"
CAUSE = (
    "clamp keeps the cosine within -1..1, but at exactly 1 the derivative of acos is -inf, and -inf "
    "times a zero is NaN"
)
REPORT = "eigenvivek/nanodrr#31"


class Head(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.turn = nn.Linear(d, 4)
        nn.init.zeros_(self.turn.weight)
        with torch.no_grad():
            self.turn.bias.copy_(torch.tensor([1.0, 0.0, 0.0, 0.0]))

    def forward(self, x):
        return F.normalize(self.turn(x), dim=-1)


class Geodesic(nn.Module):
    def forward(self, q, target):
        cosine = (q * target).sum(-1).abs().clamp(-1.0, 1.0)
        return 2 * torch.acos(cosine)


class Refiner(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head, self.distance = nn.Linear(3, 6), Head(6), Geodesic()

    def forward(self, x, target):
        return self.distance(self.head(torch.tanh(self.body(x))), target)


EXPECT = {"kind": "first-nonfinite", "what": "nan (made of inf)", "op": "aten.mul.Tensor", "phase": "backward",
          "module": "distance", "module_basis": "forward node", "fwd_op": "aten.mul.Tensor",
          "line": r"\(q \* target\)\.sum", "input_finite": False,
          "first_inf": {"op": "aten.rsqrt.default", "phase": "backward", "fwd_op": "aten.acos.default",
                        "module": "distance", "line": r"torch\.acos\(cosine\)", "input_finite": True},
          "step": 0, "reaches": "gradients, parameters", "loss_finite": True,
          "fix": "acos at exactly 1 has an infinite slope: clamp inside (1 - 1e-6) or use atan2 / the chord"}


def build():
    torch.manual_seed(304)
    model = Refiner()
    x = torch.randn(4, 3)
    target = F.normalize(torch.randn(4, 4), dim=-1)
    target[1] = torch.tensor([1.0, 0.0, 0.0, 0.0])

    def run(m):
        opt = torch.optim.SGD(m.parameters(), lr=1e-2)
        losses = []
        for _ in range(2):
            opt.zero_grad()
            loss = m(x, target).mean()
            loss.backward()
            opt.step()
            losses.append(loss.detach())
        return torch.stack(losses)
    return model, run


if __name__ == "__main__":
    model, run = build()
    print("losses", run(model).tolist(), "bias", model.head.turn.bias.tolist())
