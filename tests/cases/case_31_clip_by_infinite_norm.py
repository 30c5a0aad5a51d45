"""One gradient entry is inf; clipping multiplies everything by max_norm / inf = 0 and turns that entry into NaN."""

import torch
import torch.nn as nn

GROUP = "c"
CAUSE = "clip_grad_norm_ with a non-finite total norm: good gradients become 0, the bad one NaN, no error by default"


EXPECT = {
    "kind": "first-nonfinite",
    "what": "nan",
    "op": "aten._foreach_mul_.Tensor",
    "module": None,
    "phase": "forward",
    "input_finite": False,
    "line": r"clip_grad_norm_",
    "mutated_list_arg": True,
    "first_inf": {
        "op": "aten.div.Tensor",
        "phase": "backward",
        "module": "0",
        "module_basis": "forward node",
        "input_finite": True,
        "fwd_op": "aten.sqrt.default",
    },
    "symptom": "gradients of 1.weight are all exactly 0 after clipping",
    "note": "phase is neither backward nor optimizer: it is the code between them",
}


class Boom(nn.Module):
    def __init__(self):
        super().__init__()
        self.energy = nn.Parameter(torch.tensor([0.25, 0.0]))

    def forward(self, x):
        return torch.sqrt(self.energy) + x


def build():
    torch.manual_seed(31)
    model = nn.Sequential(Boom(), nn.Linear(2, 2))
    x = torch.rand(3, 2)

    def run(m):
        opt = torch.optim.SGD(m.parameters(), lr=1e-3)
        loss = m(x).pow(2).sum()
        loss.backward()
        nn.utils.clip_grad_norm_(m.parameters(), 1.0, foreach=True)
        opt.step()
        return loss

    return model, run
