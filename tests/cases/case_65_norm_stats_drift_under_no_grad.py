"""A policy net is rolled out under no_grad but left in train mode: BatchNorm's running statistics keep moving."""

import torch
import torch.nn as nn

GROUP = "e"
CAUSE = "no_grad does not stop buffer updates; native_batch_norm writes running_mean/var although its schema declares no write"


EXPECT = {
    "kind": "undeclared-write",
    "raises": None,
    "silent": True,
    "op": "aten.native_batch_norm.default",
    "module": "1",
    "phase": "forward",
    "line": r"m\(obs\)",
    "argument": "running_mean, running_var",
    "schema_says_write": False,
    "version_bumped": False,
    "times": 5,
    "target": "buffers 1.running_mean, 1.running_var; num_batches_tracked moves by a declared aten.add_.Tensor",
    "detect": "a core op that lies: needs a built-in exception or a content check of buffers",
}


def build():
    torch.manual_seed(65)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    obs = torch.randn(8, 3) * 5 + 2

    def run(m):
        before = m[1].running_mean.clone()
        with torch.no_grad():
            for _ in range(5):
                m(obs)
        return float((m[1].running_mean - before).abs().max())

    return model, run
