"""Model updated with a multi-tensor optimizer while a second loss still holds the old graph."""

import torch
import torch.nn as nn
import torch.nn.functional as F

GROUP = "a"
CAUSE = "the first optimizer's foreach update writes a LIST of parameters still needed by the second loss"


class Coder(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 4))
        self.dec = nn.Linear(4, 8)
        self.disc = nn.Linear(4, 2)

    def forward(self, x):
        z = self.enc(x)
        return self.dec(z), self.disc(z), z


EXPECT = {
    "kind": "inplace-after-save",
    "raises": r"modified by an inplace operation",
    "op": "aten._foreach_add_.List",
    "module": None,
    "phase": "optimizer",
    "line": r"opt_ae\.step\(\)",
    "victim_op": "aten.addmm.default",
    "victim_module": "enc.2",
    "target": "enc.2.weight",
    "note": "the mutated argument is a Tensor[] (self): a tracer must look inside list arguments",
    "naive_mode_raises": False,
    "trap": "under a TorchDispatchMode torch 2.13 does not bump the version counters of _foreach_*_ arguments "
    "(see pytorch PR 191154): a naive monitor turns this error into a silent wrong gradient",
}


def build():
    torch.manual_seed(5)
    model = Coder()
    x = torch.randn(5, 8)

    def run(m):
        ae = list(m.enc.parameters()) + list(m.dec.parameters())
        opt_ae = torch.optim.SGD(ae, lr=0.05, foreach=True)
        opt_d = torch.optim.SGD(m.disc.parameters(), lr=0.05, foreach=True)
        rec, logit, z = m(x)
        loss_ae = F.mse_loss(rec, x) + (logit[:, 0] - logit[:, 1]).mean()
        opt_ae.zero_grad()
        loss_ae.backward(retain_graph=True)
        opt_ae.step()
        perm = m.disc(z.detach()[torch.tensor([4, 2, 0, 1, 3])])
        loss_d = F.cross_entropy(logit, torch.zeros(5, dtype=torch.long)) + F.cross_entropy(
            perm, torch.ones(5, dtype=torch.long)
        )
        opt_d.zero_grad()
        loss_d.backward()
        opt_d.step()

    return model, run
