"""Dynamic-programming table filled row by row in place; the recursion's op saved views of earlier rows."""

import torch
import torch.nn as nn

GROUP = "a"
CAUSE = "writing row t bumps the version of the whole table, whose earlier-row views logaddexp saved"


class Lattice(nn.Module):
    def __init__(self, n=4):
        super().__init__()
        self.emit = nn.Linear(3, n)

    def forward(self, xs):
        e = self.emit(xs)
        table = torch.zeros(len(xs), e.shape[1])
        table[0] = e[0]
        for t in range(1, len(xs)):
            table[t] = torch.logaddexp(table[t - 1], table[t - 1].roll(1)) + e[t]
        return torch.logsumexp(table[-1], 0)


EXPECT = {
    "kind": "inplace-after-save",
    "raises": r"modified by an inplace operation",
    "op": "aten.copy_.default",
    "module": "",
    "phase": "forward",
    "line": r"table\[t\] = torch\.logaddexp",
    "victim_op": "aten.logaddexp.default",
    "victim_module": "",
    "note": "written row and saved row do not overlap in memory: still an error, because the version counter belongs to the base",
}


def build():
    torch.manual_seed(7)
    model = Lattice()
    xs = torch.randn(5, 3)

    def run(m):
        m(xs).backward()

    return model, run
