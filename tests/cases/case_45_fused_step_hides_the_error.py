"""The order mistake of case 04 with a fused optimizer: no error any more, the generator gets a wrong gradient."""

import torch
import torch.nn as nn

GROUP = "d"
CAUSE = "torch 2.13 CPU fused optimizers do not bump version counters, so autograd cannot notice the overwrite"


EXPECT = {
    "kind": "inplace-after-save",
    "raises": None,
    "silent": True,
    "op": "aten._fused_adam_.default",
    "module": None,
    "phase": "optimizer",
    "line": r"opt_j\.step\(\)",
    "victim_op": "aten.addmm.default",
    "victim_module": "judge",
    "target": "judge.weight",
    "note": "only a tracer's own write log can see this; no public report of the fused variant was found",
}


class Duel(nn.Module):
    def __init__(self):
        super().__init__()
        self.maker, self.judge = nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, z):
        return torch.sigmoid(self.judge(self.maker(z)))


def build(fused=True):
    torch.manual_seed(45)
    model = Duel()
    z = torch.randn(6, 3)

    def run(m):
        opt_j = torch.optim.Adam(m.judge.parameters(), lr=0.5, fused=fused)
        p = m(z)
        loss_j, loss_m = -(1 - p).log().mean(), (1 - p).log().mean()
        loss_j.backward(retain_graph=True)
        opt_j.step()
        m.maker.weight.grad = None
        loss_m.backward()
        return m.maker.weight.grad.clone()

    return model, run
