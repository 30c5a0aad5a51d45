"""WGAN with gradient penalty: weights NaN although penalty, loss and all values before were finite."""

import torch
import torch.nn as nn


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 5), nn.Linear(5, 1)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


def penalty(critic, x):
    x = x.detach().requires_grad_()
    (g,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
    length = g.pow(2).sum(1).sqrt()
    return (length - 1).pow(2).mean()


EXPECT = {
    "kind": "first-nonfinite",
    "what": "nan (made of inf)",
    "op": "aten.mul.Tensor",
    "phase": "backward",
    "module": None,
    "input_finite": False,
    "line": r"g\.pow\(2\)\.sum\(1\)\.sqrt\(\)",
    "fwd_op": "aten.pow.Tensor_Scalar",
    "first_inf": {"op": "aten.div.Tensor", "phase": "backward", "fwd_op": "aten.sqrt.default"},
    "loss_finite": True,
    "reaches": "gradients a.weight, b.weight; parameters",
    "fix": "sqrt(... + eps)",
}


def build():
    torch.manual_seed(106)
    model = Critic()
    real, fake = torch.randn(4, 3), torch.randn(4, 3)
    with torch.no_grad():
        model.a.bias.fill_(-0.5)
        real[2] = 0.0

    def run(m):
        opt = torch.optim.Adam(m.parameters(), lr=1e-3)
        opt.zero_grad()
        loss = m(fake).mean() - m(real).mean() + 10 * penalty(m, real)
        loss.backward()
        opt.step()
        return loss

    return model, run


if __name__ == "__main__":
    model, run = build()
    print("loss", float(run(model).detach()), "NaN weights:", [bool(p.isnan().any()) for p in model.parameters()])

GROUP = "c"
CAUSE = "the critic is flat at one sample (all ReLUs dead): norm of a zero gradient by sqrt, whose own gradient is inf, times 0 [explicit sqrt: torch.norm has a zero subgradient now; also keras-io 910]"
