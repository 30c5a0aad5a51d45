"""Early stopping keeps the state dict of the best epoch in memory; what it loads at the end are the last weights."""

import torch
import torch.nn.functional as F
from torch import nn

GROUP = "e"
CAUSE = "state_dict hands out the live tensors; the optimizer's later in-place steps rewrite the kept best state"
REPORT = "WenjieDu/PyPOTS#667"

EXPECT = {"kind": "alias-overwritten", "raises": None, "silent": True, "op": "aten.add_.Tensor", "module": None,
          "phase": "optimizer", "steps_after": 5, "line": r"opt\.step\(\)",
          "target": "best['out.weight'] and the rest of the kept state",
          "victim_op": "aten.copy_.default (load_state_dict)",
          "created_by": {"op": "aten.detach.default", "line": r"best, least = model\.state_dict\(\), loss"}}


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift, self.out = nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, x):
        return self.out(torch.tanh(self.lift(x)))


def fit(model, train, held_out, epochs=6):
    opt = torch.optim.SGD(model.parameters(), lr=0.5)
    best, least, curve = None, float("inf"), []
    for _ in range(epochs):
        opt.zero_grad()
        F.mse_loss(model(train[0]), train[1]).backward()
        opt.step()
        with torch.no_grad():
            loss = F.mse_loss(model(held_out[0]), held_out[1]).item()
        curve.append(loss)
        if loss < least:
            best, least = model.state_dict(), loss
    model.load_state_dict(best)
    with torch.no_grad():
        return least, F.mse_loss(model(held_out[0]), held_out[1]).item(), curve


def build():
    torch.manual_seed(213)
    model = Regressor()
    train, held_out = (torch.randn(4, 3), torch.randn(4, 1)), (torch.randn(8, 3), torch.randn(8, 1))

    def run(m):
        return fit(m, train, held_out)
    return model, run


if __name__ == "__main__":
    model, run = build()
    least, loaded, curve = run(model)
    print("held-out loss of each epoch:", [round(v, 3) for v in curve])
    print("least, and of the loaded best model (should agree):", round(least, 3), round(loaded, 3))
