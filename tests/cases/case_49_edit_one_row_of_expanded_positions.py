"""An intervention zeroes the positions of ONE batch element; they were made with expand, so the parameter itself is edited."""

import torch
import torch.nn as nn

GROUP = "e"
CAUSE = (
    "select on an expanded tensor has no internal overlap, so the write is allowed and lands in the embedding parameter"
)


EXPECT = {
    "kind": "parameter-overwritten",
    "raises": None,
    "silent": True,
    "op": "aten.fill_.Tensor",
    "module": "",
    "phase": "forward",
    "line": r"p\[1\] = 0\.0",
    "target": "place.table (the parameter, seen through expand + select)",
    "outside_optimizer": True,
}


class Place(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(5, 3))

    def forward(self, n):
        return self.table.expand(n, 5, 3)


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.place, self.lin = Place(), nn.Linear(3, 2)
        self.edit = True

    def forward(self, x):
        p = self.place(len(x))
        if self.edit:
            p[1] = 0.0
        return self.lin(x + p)


def build():
    torch.manual_seed(49)
    model = Tiny()
    x = torch.randn(3, 5, 3)

    def run(m):
        with torch.no_grad():
            return m(x)

    return model, run
