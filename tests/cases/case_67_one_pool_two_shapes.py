"""One pooling (and one activation) object is used at two depths; a tool that keeps one record per module mixes the shapes."""

import torch
import torch.nn as nn

GROUP = "f"
CAUSE = "state keyed by module: the second call overwrites the first"


EXPECT = {
    "kind": "shared-module",
    "names": ["pool"],
    "calls_per_step": 2,
    "distinct_parameters": 4,
    "op": "aten.max_pool2d_with_indices.default",
    "phase": "forward",
    "shapes": [[1, 3, 6, 6], [1, 4, 2, 2]],
    "trap": "per-module statistics must be per CALL (call index 0 and 1), also in backward",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(1, 3, 3), nn.Conv2d(3, 4, 3)
        self.pool, self.act = nn.MaxPool2d(2), nn.ReLU()

    def forward(self, x):
        return self.pool(self.act(self.c2(self.pool(self.act(self.c1(x))))))


def build():
    torch.manual_seed(67)
    model = Net()
    x = torch.randn(1, 1, 14, 14)

    def run(m):
        m(x).sum().backward()

    return model, run
