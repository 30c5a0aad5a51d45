"""One micro-batch consists of prompt tokens only, so every target is the ignore index."""

import torch
import torch.nn as nn
import torch.nn.functional as F

GROUP = "c"
CAUSE = "mean over zero kept targets is 0/0"


EXPECT = {
    "kind": "first-nonfinite",
    "what": "nan",
    "op": "aten.nll_loss_forward.default",
    "module": None,
    "phase": "forward",
    "input_finite": True,
    "line": r"F\.cross_entropy\(",
    "first_inf": None,
    "step": 2,
    "note": "weights stay finite: the gradient of the all-ignored batch is 0, only the loss is NaN",
}


def build():
    torch.manual_seed(27)
    model = nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 11))
    ids = torch.randint(0, 11, (3, 5))
    tgt = torch.tensor([[1, 2, 3, 4, 5], [-100] * 3 + [2, 3], [-100] * 5])

    def run(m):
        opt = torch.optim.SGD(m.parameters(), lr=0.1)
        out = []
        for x, y in zip(ids, tgt, strict=True):
            loss = F.cross_entropy(m(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            out.append(loss.item())
        return out

    return model, run
