"""Repaired 215: the perturbation is scaled out of place by a detached factor that autograd records."""

import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {"correct": True}


class Perturb(nn.Module):
    def __init__(self, width=4, budget=0.1):
        super().__init__()
        self.net, self.budget = nn.Linear(width, width), budget

    def forward(self, image):
        delta = torch.tanh(self.net(image))
        factor = self.budget / delta.detach().abs().amax(1, keepdim=True)
        moved = delta * factor
        moved += image
        return moved.clamp_(-3, 3)


class Attack(nn.Module):
    def __init__(self):
        super().__init__()
        self.perturb, self.judge = Perturb(), nn.Linear(4, 3)

    def forward(self, image, label):
        return -F.cross_entropy(self.judge(self.perturb(image)), label)


def build():
    torch.manual_seed(215)
    model, image, label = Attack(), torch.randn(2, 4), torch.tensor([0, 2])

    def run(m):
        m.zero_grad()
        m(image, label).backward()
        return m.perturb.net.bias.grad.clone(), image, label
    return model, run


if __name__ == "__main__":
    model, run = build()
    got, image, label = run(model)
    part = torch.tanh(model.perturb.net(image))
    part = part * (model.perturb.budget / part.detach().abs().amax(1, keepdim=True))
    loss = -F.cross_entropy(model.judge((image + part).clamp(-3, 3)), label)
    (want,) = torch.autograd.grad(loss, model.perturb.net.bias)
    torch.testing.assert_close(got, want)
    print("right")
