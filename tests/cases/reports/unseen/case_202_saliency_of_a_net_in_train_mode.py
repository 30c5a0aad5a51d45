"""Input saliency by torch.func.grad: the network is still in train mode, and its batch norm is refused."""

import torch
from torch import nn

GROUP = "a"
CAUSE = "num_batches_tracked.add_ writes a tensor that the transformed function captured; a transform forbids that"
REPORT = "pytorch/pytorch#85533"


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift, self.norm, self.out = nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 1)

    def forward(self, x):
        return self.out(torch.tanh(self.norm(self.lift(x)))).squeeze(-1)


EXPECT = {"kind": "inplace-forbidden",
          "raises": r"attempted to call in-place operation .* that would mutate a captured Tensor",
          "op_seen": False, "blocked_op": "aten.add_.Tensor", "module": "norm", "phase": "forward",
          "line": r"self\.norm\(self\.lift\(x\)\)", "target": "norm.num_batches_tracked"}


def build():
    torch.manual_seed(202)
    model, x = Net(), torch.randn(4, 3)

    def run(m):
        def score(batch):
            return m(batch).sum()
        return torch.func.grad(score)(x).abs()
    return model, run


if __name__ == "__main__":
    model, run = build()
    try:
        run(model)
        print("no error")
    except RuntimeError as e:
        print("raised:", str(e)[:200])
