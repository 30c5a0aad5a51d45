"""Positive rates by 'exp below zero, 1 + a above': the losses are finite, one outlier row makes every gradient NaN."""

import torch
import torch.nn as nn

GROUP = "c"
CAUSE = (
    "exp of the branch that is not taken overflows; where hides that inf, but its zero gradient times "
    "exp's inf is NaN"
)
REPORT = "pytorch/pytorch#68425"


class Rate(nn.Module):
    def forward(self, a):
        return torch.where(a <= 0, torch.exp(a), 1 + a)


class Intensity(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.out, self.rate = nn.Linear(3, 6), nn.Linear(6, 1), Rate()

    def forward(self, x):
        return self.rate(self.out(torch.relu(self.hidden(x)))).squeeze(-1)


EXPECT = {"kind": "first-nonfinite", "what": "nan (made of inf)", "op": "aten.mul.Tensor", "phase": "backward",
          "module": "rate", "module_basis": "forward node", "fwd_op": "aten.exp.default",
          "line": r"torch\.where\(a <= 0, torch\.exp\(a\)", "input_finite": False,
          "first_inf": {"op": "aten.exp.default", "phase": "forward", "module": "rate", "line": r"torch\.exp\(a\)",
                        "note": "the where drops it: the rate itself and the loss are finite"},
          "step": 2, "reaches": "gradients, parameters", "loss_finite": True,
          "fix": "exp overflows in the branch that is not selected: clamp its argument (a.clamp(max=0)) before exp"}


def build():
    torch.manual_seed(303)
    model = Intensity()
    batches = [(torch.randn(6, 3), torch.randint(0, 4, (6,)).float()) for _ in range(4)]
    with torch.no_grad():
        model.out.weight.abs_()
        batches[2][0][4] = 900 * torch.sign(model.hidden.weight[0])

    def run(m):
        opt = torch.optim.Adam(m.parameters(), lr=1e-3)
        losses = []
        for x, count in batches:
            rate = m(x)
            loss = (rate - count).abs().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.detach())
        return torch.stack(losses)
    return model, run


if __name__ == "__main__":
    model, run = build()
    print("losses", run(model).tolist(), "bias", model.out.bias.item())
