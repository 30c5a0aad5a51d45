"""Population training copies a member and its optimizer state: each step of one moves the other's momentum."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

GROUP = "e"
CAUSE = "Optimizer.load_state_dict keeps the very tensors of the state dict it is given; both optimizers share momentum"
REPORT = "pytorch/pytorch#196083"

EXPECT = {"kind": "alias-overwritten", "raises": None, "silent": True, "beyond": True, "op": "aten.mul_.Tensor",
          "module": None, "phase": "optimizer", "line": r"opt\.step\(\)",
          "target": "momentum_buffer of the other member's optimizer (the same tensor objects)",
          "note": "two dictionaries hold one tensor object and both update it as optimizers do; no alias is made"}


class Member(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

    def forward(self, x):
        return self.net(x)


def train(model, opt, x, y):
    opt.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    opt.step()
    return loss.item()


def build():
    torch.manual_seed(214)
    model = Member()
    x, y = torch.randn(6, 3), torch.randn(6, 1)

    def run(m):
        opt_a = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)
        train(m, opt_a, x, y)
        twin = copy.deepcopy(m)
        opt_b = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
        opt_b.load_state_dict(opt_a.state_dict())
        return [(train(m, opt_a, x, y), train(twin, opt_b, x, y)) for _ in range(3)]
    return model, run


if __name__ == "__main__":
    model, run = build()
    print("losses of two equal members on equal data (pairs should agree):")
    for a, b in run(model):
        print(f"  {a:.4f} {b:.4f}")
