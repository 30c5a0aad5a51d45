"""Own Adam-like optimizer: weights of an input that is always zero become NaN in the first step; gradients are fine."""

import torch
import torch.nn as nn

GROUP = "c"
CAUSE = (
    "the epsilon is added after rsqrt: for a zero second moment rsqrt(0) is inf, and the zero first "
    "moment times inf is NaN"
)
REPORT = "kozistr/pytorch_optimizer#480"


class Projected(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-2, betas=(0.9, 0.99), eps=1e-8):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                s = self.state[p]
                if not s:
                    s["t"], s["m"], s["v"] = 0, torch.zeros_like(p), torch.zeros_like(p)
                s["t"] += 1
                s["m"].mul_(b1).add_(p.grad, alpha=1 - b1)
                s["v"].mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
                inverse = s["v"].rsqrt().add_(group["eps"])
                update = s["m"] * inverse
                rate = group["lr"] * (1 - b2 ** s["t"]) ** 0.5 / (1 - b1 ** s["t"])
                p.add_(update, alpha=-rate)


EXPECT = {"kind": "first-nonfinite", "what": "nan (made of inf)", "op": "aten.mul.Tensor", "module": None,
          "phase": "optimizer", "input_finite": False, "line": r"update = s\[\"m\"\] \* inverse",
          "first_inf": {"op": "aten.rsqrt.default", "phase": "optimizer", "line": r"s\[\"v\"\]\.rsqrt\(\)"},
          "step": 0, "reaches": "parameter first.weight", "loss_finite": True,
          "fix": "rsqrt of 0: add the epsilon to the root before inverting, m / (v.sqrt() + eps)"}


def build():
    torch.manual_seed(307)
    model = nn.Sequential()
    model.add_module("first", nn.Linear(4, 6))
    model.add_module("act", nn.Tanh())
    model.add_module("last", nn.Linear(6, 1))
    x, y = torch.randn(8, 4), torch.randn(8, 1)
    x[:, 2] = 0.0                   # a feature that never occurs

    def run(m):
        opt = Projected(m.parameters())
        losses = []
        for _ in range(2):
            opt.zero_grad()
            loss = (m(x) - y).pow(2).mean()
            loss.backward()
            opt.step()
            losses.append(loss.detach())
        return torch.stack(losses)
    return model, run


if __name__ == "__main__":
    model, run = build()
    print("losses", run(model).tolist())
    print("NaN columns of first.weight:", model.first.weight.isnan().any(0).tolist())
