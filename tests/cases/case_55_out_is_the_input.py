"""Row sums are taken with out= pointing at the input matrix, which is resized and overwritten."""

import warnings

import torch
import torch.nn as nn

GROUP = "e"
CAUSE = "out= aliases an input: it is resized to 1-D before it is read, so the error complains about a wrong dim"


EXPECT = {
    "kind": "out-aliases-input",
    "raises": r"Dimension out of range",
    "op": "aten.sum.IntList_out",
    "module": "",
    "phase": "forward",
    "line": r"torch\.sum\(self\.counts, 1, out=self\.counts\)",
    "target": "buffer counts",
    "shape_before": (3, 3),
    "shape_after": (3,),
    "op_seen": True,
}


class Tally(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("counts", torch.arange(9.0).reshape(3, 3))

    def forward(self):
        torch.sum(self.counts, 1, out=self.counts)
        return self.counts


def build():
    torch.manual_seed(55)
    model = Tally()

    def run(m):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return m()

    return model, run
