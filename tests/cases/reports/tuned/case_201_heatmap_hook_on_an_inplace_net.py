"""A class-activation tool puts a full backward hook on a layer; the in-place ReLU after it is refused in forward."""

import torch
from torch import nn

GROUP = "a"
CAUSE = "the full backward hook wraps the layer's output in a custom Function; relu_ on that output is forbidden"
REPORT = "pytorch/pytorch#61519"


class Features(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(2, 4, 3, padding=1)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.act(self.conv(x))


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.features, self.head = Features(), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.features(x).mean(-1))


EXPECT = {"kind": "inplace-forbidden",
          "raises": r"BackwardHookFunction\w* is a view and is being modified inplace",
          "op_seen": False, "blocked_op": "aten.relu_.default", "module": "features.act", "phase": "forward",
          "line": r"return self\.act\(self\.conv\(x\)\)", "target": "the output of features.conv, wrapped by its hook",
          "note": "autograd refuses before the operator is dispatched; without the hook the same net is right"}


def build():
    torch.manual_seed(201)
    model, x = Classifier(), torch.randn(2, 2, 6)
    seen = {}
    model.features.conv.register_full_backward_hook(lambda mod, gin, gout: seen.update(grad=gout[0]))

    def run(m):
        scores = m(x)
        scores[:, 0].sum().backward()
        return seen["grad"].mean(-1)
    return model, run


if __name__ == "__main__":
    model, run = build()
    try:
        run(model)
        print("no error")
    except RuntimeError as e:
        print("raised:", str(e)[:160])
