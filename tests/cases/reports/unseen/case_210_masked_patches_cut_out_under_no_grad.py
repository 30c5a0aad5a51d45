"""Masked pretraining cuts patches out of the features under no_grad, then pastes the mask token in: refused."""

import torch
import torch.nn.functional as F
from torch import nn

GROUP = "a"
CAUSE = "the patch view is made in no_grad mode and written in grad mode; autograd cannot know what is meant"
REPORT = "ccarliu/m3ae#15"


class Pretrain(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.stem, self.head = nn.Linear(3, width), nn.Linear(width, 3)
        self.token = nn.Parameter(torch.zeros(width))

    @torch.no_grad()
    def patches(self, feats):
        return feats.view(len(feats), -1, 2, feats.shape[-1])

    def forward(self, x, hidden):
        feats = self.stem(x)
        cut = self.patches(feats)
        cut[:, hidden] = self.token
        return self.head(feats)


EXPECT = {"kind": "inplace-forbidden",
          "raises": r"view which was created in no_grad mode and is being modified inplace with grad mode enabled",
          "blocked_op": "aten.copy_.default", "module": "", "phase": "forward",
          "line": r"cut\[:, hidden\] = self\.token", "target": "cut, a view of feats",
          "created_by": {"op": "aten.view.default", "line": r"return feats\.view\("}}


def build():
    torch.manual_seed(210)
    model, x = Pretrain(), torch.randn(2, 6, 3)

    def run(m):
        F.mse_loss(m(x, 1), x).backward()
    return model, run


if __name__ == "__main__":
    model, run = build()
    try:
        run(model)
        print("no error")
    except RuntimeError as e:
        print("raised:", str(e)[:160])
