"""A tracer that compares input and output identity decides that in-place modules did nothing."""

import torch
import torch.nn as nn

GROUP = "b"
CAUSE = "in-place module returns its own input object, exactly like nn.Identity; only the values differ"


class Custom(nn.Module):
    def forward(self, x):
        return torch.relu_(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 3, 3), nn.ReLU(inplace=True), nn.Identity(), nn.Conv2d(3, 3, 3), Custom()
        )

    def forward(self, x):
        return self.body(x)


EXPECT = {
    "kind": "module-input-overwritten",
    "raises": None,
    "phase": "forward",
    "line": r"return self\.body\(x\)|torch\.relu_\(x\)",
    "events": [
        {"module": "body.1", "op": "aten.relu_.default", "before_min_lt": 0.0, "after_min": 0.0},
        {"module": "body.4", "op": "aten.relu_.default", "before_min_lt": 0.0, "after_min": 0.0},
    ],
    "not_events": ["body.2 (nn.Identity dispatches no op and changes nothing)"],
}


def build():
    torch.manual_seed(21)
    model = Net()
    x = torch.randn(1, 1, 8, 8)

    def run(m):
        with torch.no_grad():
            m(x)

    return model, run
