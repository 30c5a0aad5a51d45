"""Key points are made relative to the first joint in place: only the first joint moves, training goes badly."""

import torch
import torch.nn.functional as F
from torch import nn

GROUP = "e"
CAUSE = "the subtrahend is a view of the written tensor: its entries are already 0 when the later columns read them"
REPORT = "pytorch/pytorch#135487"


class Relative(nn.Module):
    def forward(self, joints):
        joints = joints.clone()
        joints -= joints[:, :1]
        return joints


class Pose(nn.Module):
    def __init__(self, joints=5):
        super().__init__()
        self.relative, self.net = Relative(), nn.Linear(joints, 2)

    def forward(self, joints):
        return self.net(self.relative(joints))


EXPECT = {"kind": "operands-overlap", "raises": None, "silent": True, "op": "aten.sub_.Tensor", "module": "relative",
          "phase": "forward", "line": r"joints -= joints\[:, :1\]", "target": "joints, and joints[:, :1] which is read",
          "times": 3, "note": "operand expanded over the columns: torch lets it pass, the order of reading decides"}


def build():
    torch.manual_seed(211)
    model, joints, goal = Pose(), torch.randn(4, 5), torch.randn(4, 2)

    def run(m):
        opt = torch.optim.SGD(m.parameters(), lr=0.05)
        for _ in range(3):
            opt.zero_grad()
            F.mse_loss(m(joints), goal).backward()
            opt.step()
        return [p.detach().clone() for p in m.parameters()]
    return model, run


if __name__ == "__main__":
    model, run = build()
    joints = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0], [2.0, 4.0, 6.0, 8.0, 10.0]])
    print("relative to the first (should be 0 1 2 3 4 and 0 2 4 6 8):", model.relative(joints).tolist())
