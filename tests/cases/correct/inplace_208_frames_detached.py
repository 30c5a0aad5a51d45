"""Repaired 208: the rotations are replaced by their detached view; nothing is written."""

import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {"correct": True}


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
        quat = self.turn(feats)
        quat[:, 0] += 1.0
        place = torch.zeros(len(feats), 3)
        for layer in range(self.depth):
            turn = rotation(quat)
            if layer < self.depth - 1:
                turn = turn.detach()
            place += (turn @ self.shift(feats).unsqueeze(-1)).squeeze(-1)
        return place


def build():
    torch.manual_seed(208)
    model, feats, goal = Structure(), torch.randn(4, 5), torch.randn(4, 3)

    def run(m):
        m.zero_grad()
        F.mse_loss(m(feats), goal).backward()
        return m.turn.weight.grad.clone(), feats, goal
    return model, run


if __name__ == "__main__":
    model, run = build()
    got, feats, goal = run(model)
    turn = rotation(torch.tensor([1.0, 0.0, 0.0, 0.0]) + model.turn(feats))
    shift = model.shift(feats).unsqueeze(-1)
    place = ((turn.detach() + turn) @ shift).squeeze(-1)
    (want,) = torch.autograd.grad(F.mse_loss(place, goal), model.turn.weight)
    torch.testing.assert_close(got, want)
    print("right")
