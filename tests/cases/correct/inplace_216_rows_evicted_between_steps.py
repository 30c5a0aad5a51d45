"""Repaired 216: rows are evicted under no_grad, after backward and the optimizer step, never between two forwards."""

import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {"correct": True}


class Managed(nn.Module):
    def __init__(self, slots=3, dim=4):
        super().__init__()
        self.table = nn.Parameter(torch.randn(slots, dim))
        self.slots, self.where = slots, {}

    @torch.no_grad()
    def admit(self, keys):
        for key in keys:
            if key in self.where:
                continue
            row = len(self.where)
            if row == self.slots:
                row = self.where.pop(next(k for k in self.where if k not in keys))
                self.table[row] = 0.01
            self.where[key] = row

    def forward(self, keys, users):
        return (users @ self.table.T)[:, torch.tensor([self.where[k] for k in keys])]


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.items = nn.Linear(5, 4), Managed()

    def forward(self, keys, feats):
        return self.items(keys, self.user(feats))


def build():
    torch.manual_seed(216)
    model, feats = Recommender(), torch.randn(4, 5)

    def run(m):
        opt = torch.optim.SGD(m.parameters(), lr=0.1)
        grads = []
        for keys in (["apple", "pear", "plum"], ["plum", "quince"]):
            m.items.admit(keys)
            opt.zero_grad()
            (F.softplus(-m(keys, feats)).mean() + F.softplus(m(keys[:1], feats)).mean()).backward()
            grads.append(m.user.bias.grad.clone())
            opt.step()
        return grads, feats
    return model, run


if __name__ == "__main__":
    model, run = build()
    grads, feats = run(model)
    ref, _ = build()
    table, user = ref.items.table.detach().clone(), ref.user
    for step, rows in enumerate(([0, 1, 2], [2, 0])):
        if step == 1:
            table[0] = 0.01
        table = table.detach().requires_grad_()
        s = user(feats) @ table.T
        loss = F.softplus(-s[:, rows]).mean() + F.softplus(s[:, rows[:1]]).mean()
        gw, gb, gt = torch.autograd.grad(loss, [user.weight, user.bias, table])
        torch.testing.assert_close(grads[step], gb)
        with torch.no_grad():
            user.weight -= 0.1 * gw
            user.bias -= 0.1 * gb
            table = table - 0.1 * gt
    torch.testing.assert_close(model.items.table.detach(), table)
    print("right")
