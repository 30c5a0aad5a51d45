"""Orthogonalising optimizer with a row-wise second moment: NaN weights after the first step when an output layer starts at zero."""

import torch
import torch.nn as nn


class RowScaled(torch.optim.Optimizer):
    def __init__(self, params, lr=0.05):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for g in self.param_groups:
            for p in g["params"]:
                st = self.state[p]
                if not st:
                    st["rows"] = torch.zeros(p.shape[0], 1)
                u = p.grad
                x = u / (u.norm() + 1e-7)
                st["rows"].lerp_(x.square().mean(1, keepdim=True), 0.1)
                y = x / (st["rows"].sqrt() + 1e-8)
                ratio = x.norm() / y.norm()
                p.add_(y * ratio, alpha=-g["lr"])


EXPECT = {
    "kind": "first-nonfinite",
    "what": "nan",
    "op": "aten.div.Tensor",
    "module": None,
    "phase": "optimizer",
    "input_finite": True,
    "line": r"ratio = x\.norm\(\) / y\.norm\(\)",
    "first_inf": None,
    "reaches": "parameter 0.weight",
    "step": 0,
    "fix": "the norm of the update is 0 (zero gradient): clamp the denominator",
}


def build():
    torch.manual_seed(92)
    model = nn.Sequential(nn.Linear(5, 6, bias=False), nn.Tanh(), nn.Linear(6, 2, bias=False))
    nn.init.zeros_(model[2].weight)
    x, y = torch.randn(8, 5), torch.randn(8, 2)

    def run(m):
        opt = RowScaled(m.parameters())
        for _ in range(2):
            opt.zero_grad()
            loss = (m(x) - y).pow(2).mean()
            loss.backward()
            opt.step()
        return loss

    return model, run


if __name__ == "__main__":
    model, run = build()
    print("loss", float(run(model).detach()), [bool(p.isnan().any()) for p in model.parameters()])

GROUP = "c"
CAUSE = "a zero-initialised output layer gives the layer below a zero gradient; norm before / norm after is 0/0 for its update"
