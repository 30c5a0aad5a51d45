"""A managed table evicts rows while a second forward fills it; the loss of both forwards gets a wrong gradient."""

import torch
import torch.nn.functional as F
from torch import nn

GROUP = "e"
CAUSE = "eviction rewrites table rows through .data; the first forward's product still needs the old rows in backward"
REPORT = "meta-pytorch/torchrec#2836"


class Managed(nn.Module):
    def __init__(self, slots=3, dim=4):
        super().__init__()
        self.table = nn.Parameter(torch.randn(slots, dim))
        self.slots, self.where = slots, {}

    def slot(self, key):
        if key not in self.where:
            if len(self.where) == self.slots:
                oldest = next(iter(self.where))
                row = self.where.pop(oldest)
                self.table.data[row] = 0.01
            else:
                row = len(self.where)
            self.where[key] = row
        return self.where[key]

    def forward(self, keys, users):
        rows = torch.tensor([self.slot(k) for k in keys])
        return (users @ self.table.T)[:, rows]


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.items = nn.Linear(5, 4), Managed()

    def forward(self, keys, feats):
        return self.items(keys, self.user(feats))


EXPECT = {"kind": "inplace-after-save", "raises": None, "silent": True, "op": "aten.fill_.Tensor",
          "module": "items", "phase": "forward", "line": r"self\.table\.data\[row\] = 0\.01",
          "victim_op": "aten.mm.default", "victim_module": "items",
          "victim_line": r"return \(users @ self\.table\.T\)", "target": "items.table, through .data", "times": 1}


def build():
    torch.manual_seed(216)
    model, feats = Recommender(), torch.randn(4, 5)

    def run(m):
        m.zero_grad()
        first = m(["apple", "pear", "plum"], feats)
        second = m(["plum", "quince"], feats)
        (F.softplus(-first).mean() + F.softplus(second).mean()).backward()
        return m.user.bias.grad.clone()
    return model, run


if __name__ == "__main__":
    model, run = build()
    got = run(model)
    torch.manual_seed(216)
    model, feats = Recommender(), torch.randn(4, 5)
    old, new = model.items.table.detach().clone(), model.items.table.detach().clone()
    new[0] = 0.01
    u = model.user(feats)
    loss = F.softplus(-(u @ old.T)).mean() + F.softplus((u @ new.T)[:, [2, 0]]).mean()
    (true,) = torch.autograd.grad(loss, model.user.bias)
    print("gradient of the user bias:", [round(v, 4) for v in got.tolist()])
    print("should be:", [round(v, 4) for v in true.tolist()])
