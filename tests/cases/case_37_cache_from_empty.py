"""Key/value cache allocated with torch.empty, only partly filled, then read as a whole with multiplicative masking."""

import torch
import torch.nn as nn

GROUP = "d"
CAUSE = "unwritten cache rows hold whatever the allocator returns; 0 * garbage is NaN when the garbage is inf/NaN"


class Cached(nn.Module):
    def __init__(self, d, room):
        super().__init__()
        self.k, self.v = nn.Linear(d, d), nn.Linear(d, d)
        self.room = room

    def forward(self, x):
        t, d = x.shape
        store = torch.empty(2, self.room, d)
        store[0, :t] = self.k(x)
        store[1, :t] = self.v(x)
        w = (x @ store[0].T).softmax(-1)
        live = (torch.arange(self.room) < t).float()
        return (w * live) @ store[1]


EXPECT = {
    "kind": "uninitialised-read",
    "origin_op": "aten.empty.memory_format",
    "module": "",
    "phase": "forward",
    "line": r"store = torch\.empty",
    "first_reader": {"op": "aten.mm.default", "line": r"x @ store\[0\]\.T"},
    "written_fraction": 0.375,
    "note": "NaN in the output of aten.empty must not be reported as 'produced NaN' by itself",
}


def build():
    torch.manual_seed(37)
    model = Cached(64, 64)
    x = torch.randn(24, 64)

    def run(m):
        with torch.no_grad():
            for junk in (0.0, float("nan"), 1e20):
                dirt = torch.full((2, 64, 64), junk)  # leave junk behind in the allocator
                del dirt
                y = m(x)
                yield_(y)

    outs = []

    def yield_(y):
        outs.append((bool(y.isnan().any()), float(y.nan_to_num().abs().sum())))

    model.outs = outs
    return model, run
