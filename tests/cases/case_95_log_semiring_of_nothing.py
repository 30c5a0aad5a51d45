"""Log-space forward recursion with forbidden transitions: likelihood is right, every gradient is NaN."""

import torch
import torch.nn as nn


class Chain(nn.Module):
    def __init__(self):
        super().__init__()
        self.emit = nn.Linear(4, 3)
        self.jump = nn.Parameter(torch.zeros(3, 3))
        self.register_buffer("banned", torch.tensor([[0, 0, 1], [1, 0, 1], [1, 1, 0]], dtype=torch.bool))

    def forward(self, x):
        e = self.emit(x)
        t = self.jump.masked_fill(self.banned, float("-inf"))
        alpha = torch.where(torch.arange(3) == 0, e[0], torch.tensor(float("-inf")))
        for row in e[1:]:
            paths = alpha[:, None] + t
            total = paths[0]
            for k in (1, 2):
                total = torch.logaddexp(total, paths[k])
            alpha = total + row
        return -torch.logsumexp(alpha, 0)


EXPECT = {
    "kind": "first-nonfinite",
    "what": "nan",
    "phase": "backward",
    "module": "",
    "module_basis": "forward node",
    "fwd_op": "aten.logaddexp.default",
    "line": r"torch\.logaddexp\(total, paths\[k\]\)",
    "input_finite": False,
    "first_inf": {"deliberate": True, "op": "masked_fill / the where with -inf", "phase": "forward"},
    "loss_finite": True,
    "fix": "use a large finite negative instead of -inf, or a safe logaddexp",
}


def build():
    torch.manual_seed(94)
    model = Chain()
    x = torch.randn(4, 4)

    def run(m):
        loss = m(x)
        loss.backward()
        return loss

    return model, run


if __name__ == "__main__":
    model, run = build()
    print("loss", float(run(model).detach()), "grad NaN:", bool(model.emit.weight.grad.isnan().any()))

GROUP = "c"
CAUSE = "logaddexp(-inf, -inf) is -inf in forward, but its gradient is exp(-inf - -inf) = NaN"
