"""Half-precision attention: mask entries are finfo.min, one (padded) query row is masked everywhere, scores are below -16."""

import torch
import torch.nn as nn

GROUP = "c"
CAUSE = "finfo(fp16).min + (score < -16) rounds to -inf; a row that is -inf everywhere makes softmax NaN"


class Attend(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(d, d, bias=False) for _ in range(3))

    def forward(self, x, keep):
        t = x.shape[1]
        seen = torch.ones(t, t).tril().bool() & keep[:, None]
        low = torch.zeros(seen.shape, dtype=x.dtype).masked_fill(~seen, torch.finfo(x.dtype).min)
        scores = self.q(x) @ self.k(x).transpose(1, 2)
        masked = scores + low
        return torch.softmax(masked, -1) @ self.v(x)


EXPECT = {
    "kind": "first-nonfinite",
    "what": "nan",
    "op": "aten._softmax.default",
    "module": "",
    "phase": "forward",
    "input_finite": False,
    "line": r"torch\.softmax\(masked, -1\)",
    "first_inf": {
        "op": "aten.add.Tensor",
        "module": "",
        "phase": "forward",
        "input_finite": True,
        "line": r"masked = scores \+ low",
    },
}


def build():
    torch.manual_seed(29)
    model = Attend(4)
    with torch.no_grad():
        model.q.weight.copy_(torch.eye(4) * 5)
        model.k.weight.copy_(torch.eye(4) * -5)
    model.half()
    x = torch.rand(2, 4, 4).half() + 0.5
    keep = torch.tensor([[True] * 4, [False, True, True, True]])

    def run(m):
        with torch.no_grad():
            return m(x, keep)

    return model, run
