"""A structure module stops the gradient of its rotations between iterations with detach_: refused."""

import torch
import torch.nn.functional as F
from torch import nn

GROUP = "a"
CAUSE = "the rotations are a view (a reshape of the nine entries); a view cannot be detached in place"
REPORT = "lucidrains/invariant-point-attention#9"


def rotation(q):
    w, x, y, z = F.normalize(q, dim=-1).unbind(-1)
    rows = torch.stack([1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w),
                        2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w),
                        2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)], -1)
    return rows.view(*q.shape[:-1], 3, 3)


class Structure(nn.Module):
    def __init__(self, depth=2):
        super().__init__()
        self.depth, self.turn, self.shift = depth, nn.Linear(5, 4), nn.Linear(5, 3)

    def forward(self, feats):
        quat = torch.tensor([1.0, 0.0, 0.0, 0.0]) + self.turn(feats)
        place = torch.zeros(len(feats), 3)
        for layer in range(self.depth):
            turn = rotation(quat)
            if layer < self.depth - 1:
                turn.detach_()
            place = place + (turn @ self.shift(feats).unsqueeze(-1)).squeeze(-1)
        return place


EXPECT = {"kind": "inplace-forbidden", "raises": r"Can't detach views in-place", "op_seen": False,
          "blocked_op": "aten.detach_.default", "module": "", "phase": "forward", "line": r"turn\.detach_\(\)",
          "target": "turn, a view of rows"}


def build():
    torch.manual_seed(208)
    model, feats, goal = Structure(), torch.randn(4, 5), torch.randn(4, 3)

    def run(m):
        F.mse_loss(m(feats), goal).backward()
    return model, run


if __name__ == "__main__":
    model, run = build()
    try:
        run(model)
        print("no error")
    except RuntimeError as e:
        print("raised:", str(e)[:160])
