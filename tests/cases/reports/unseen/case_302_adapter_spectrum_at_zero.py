"""Low-rank adapter with a penalty on its leading direction: the loss is finite, all adapter weights turn NaN."""

import torch
import torch.nn as nn

GROUP = "c"
CAUSE = (
    "the adapter starts at zero: all singular values are equal (0), and the backward of svd divides by "
    "their differences"
)
REPORT = "pytorch/pytorch#49886"


class Adapter(nn.Module):
    def __init__(self, d, rank):
        super().__init__()
        self.down = nn.Parameter(torch.randn(rank, d) / d)
        self.up = nn.Parameter(torch.zeros(d, rank))

    def delta(self):
        return self.up @ self.down

    def forward(self, x):
        return x @ self.delta().T


class Direction(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.register_buffer("keep", torch.ones(d) / d ** 0.5)

    def forward(self, w):
        u, s, vh = torch.linalg.svd(w)
        return (u[:, 0] @ self.keep) ** 2 + 0.1 * s.sum() + (vh[0] @ self.keep) ** 2


class Tuned(nn.Module):
    def __init__(self, d=5):
        super().__init__()
        self.base, self.adapter, self.direction = nn.Linear(d, d), Adapter(d, 2), Direction(d)

    def forward(self, x):
        return self.base(x) + self.adapter(x)


EXPECT = {"kind": "first-nonfinite", "what": "nan", "op": "aten.div.Tensor", "phase": "backward",
          "module": "direction", "module_basis": "forward node", "fwd_op": "aten._linalg_svd.default",
          "line": r"torch\.linalg\.svd\(w\)", "input_finite": True, "first_inf": None, "step": 0,
          "reaches": "gradients adapter.up, adapter.down; parameters", "loss_finite": True,
          "fix": "equal singular values: u and vh have no gradient there; use singular values only or start off zero"}


def build():
    torch.manual_seed(302)
    model = Tuned()
    model.base.requires_grad_(False)
    x, y = torch.randn(8, 5), torch.randn(8, 5)

    def run(m):
        opt = torch.optim.Adam([p for p in m.parameters() if p.requires_grad], lr=1e-2)
        losses = []
        for _ in range(2):
            opt.zero_grad()
            loss = (m(x) - y).pow(2).mean() + m.direction(m.adapter.delta())
            loss.backward()
            opt.step()
            losses.append(loss.detach())
            if not bool(m.adapter.up.isfinite().all()):
                break               # the next svd would refuse its input
        return torch.stack(losses)
    return model, run


if __name__ == "__main__":
    model, run = build()
    print("losses", run(model).tolist(), "adapter.up", model.adapter.up[0].tolist())
