"""Per-module input statistics taken in a forward hook of in-place activations."""

import torch
import torch.nn as nn

GROUP = "b"
CAUSE = "the hook runs after forward, its `input` is already the activation's result"


EXPECT = {
    "kind": "module-input-overwritten",
    "raises": None,
    "phase": "forward",
    "line": r"m\(x\)",
    "events": [
        {"module": "1", "op": "aten.relu_.default", "before_min_lt": 0.0, "after_min": 0.0},
        {"module": "3", "op": "aten.hardtanh_.default", "before_max_gt": 1.0, "after_max": 1.0},
        {"module": "5", "op": "aten.silu_.default", "before_min_lt": -1.0, "after_min_gt": -0.3},
    ],
    "symptom": "hook-based input stats equal the output stats for modules 1, 3 and 5",
}
SEEN = {}


def build():
    torch.manual_seed(19)
    model = nn.Sequential(
        nn.Linear(6, 8),
        nn.ReLU(inplace=True),
        nn.Linear(8, 8),
        nn.Hardtanh(-1.0, 1.0, inplace=True),
        nn.Linear(8, 8),
        nn.SiLU(inplace=True),
    )
    with torch.no_grad():
        for k in (2, 4):
            model[k].weight.mul_(6.0)
    x = torch.randn(16, 6)

    def run(m):
        hs = [
            m[k].register_forward_hook(
                lambda mod, a, o, k=k: SEEN.__setitem__(k, (a[0].detach().clone(), o.detach().clone()))
            )
            for k in (1, 3, 5)
        ]
        with torch.no_grad():
            m(x)
        for h in hs:
            h.remove()

    return model, run
