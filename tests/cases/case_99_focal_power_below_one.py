"""Focal loss with gamma 0.5: loss is finite, gradient NaN once the network is sure."""

import torch
import torch.nn as nn


class Focal(nn.Module):
    def __init__(self, gamma=0.5):
        super().__init__()
        self.gamma = gamma

    def forward(self, logits, y):
        p = torch.sigmoid(logits)
        pt = torch.where(y > 0, p, 1 - p)
        return -((1 - pt) ** self.gamma * torch.log(pt + 1e-8)).mean()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.loss = nn.Linear(3, 1), Focal()

    def forward(self, x, y):
        return self.loss(self.body(x)[:, 0], y)


EXPECT = {
    "kind": "first-nonfinite",
    "what": "nan (made of inf)",
    "op": "aten.mul.Tensor",
    "phase": "backward",
    "module": "loss",
    "module_basis": "forward node",
    "fwd_op": "aten.pow.Tensor_Scalar",
    "line": r"\(1 - pt\) \*\* self\.gamma",
    "input_finite": False,
    "first_inf": {"op": "aten.pow.Tensor_Scalar", "phase": "backward", "line": r"\(1 - pt\) \*\* self\.gamma"},
    "loss_finite": True,
    "fix": "the base of the power was 0: add an epsilon / clamp",
}


def build():
    torch.manual_seed(98)
    model = Net()
    x, y = torch.randn(4, 3), torch.tensor([1.0, 0.0, 1.0, 0.0])
    with torch.no_grad():
        x[0] = 60 * model.body.weight[0].sign() / model.body.weight.abs().mean()

    def run(m):
        loss = m(x, y)
        loss.backward()
        return loss

    return model, run


if __name__ == "__main__":
    model, run = build()
    print("loss", float(run(model).detach()), "grad", model.body.weight.grad)

GROUP = "c"
CAUSE = "d u**0.5 is inf at u = 1 - p = 0, and it is multiplied by a zero"
