"""Residual quantiser initialised by k-means on its first batch: NaN codes appear on some data sets, then NaN losses."""

import torch
import torch.nn as nn

GROUP = "c"
CAUSE = "two start centroids coincide (repeated items), so one cluster gets no member: mean over zero rows is 0 / 0"
REPORT = "EdoardoBotta/RQ-VAE-Recommender#27"


class Level(nn.Module):
    def __init__(self, codes, d):
        super().__init__()
        self.register_buffer("codebook", torch.zeros(codes, d))
        self.register_buffer("ready", torch.tensor(False))

    @torch.no_grad()
    def initialise(self, x, rounds=2):
        centre = x[:len(self.codebook)].clone()
        for _ in range(rounds):
            owner = torch.cdist(x, centre).argmin(1)
            for k in range(len(centre)):
                centre[k] = x[owner == k].mean(0)
        self.codebook.copy_(centre)
        self.ready.fill_(True)

    def forward(self, x):
        if not self.ready:
            self.initialise(x.detach())
        code = self.codebook[torch.cdist(x.detach(), self.codebook).argmin(1)]
        return x + (code - x).detach(), (x - code).pow(2).mean()


class Quantiser(nn.Module):
    def __init__(self, d=4):
        super().__init__()
        self.encode, self.decode = nn.Linear(6, d), nn.Linear(d, 6)
        self.level = nn.ModuleList(Level(3, d) for _ in range(2))

    def forward(self, x):
        rest, total, commit = self.encode(x), 0, 0
        for stage in self.level:
            code, c = stage(rest)
            total, rest, commit = total + code, rest - code.detach(), commit + c
        return (self.decode(total) - x).pow(2).mean() + commit


EXPECT = {"kind": "first-nonfinite", "what": "nan", "op": "aten.mean.dim", "module": "level.0", "phase": "forward",
          "input_finite": True, "input_empty": True, "line": r"x\[owner == k\]\.mean\(0\)",
          "first_inf": None, "step": 0,
          "stored_by": {"op": "aten.copy_.default", "module": "level.0", "target": "level.0.codebook",
                        "line": r"self\.codebook\.copy_\(centre\)"},
          "reaches": "buffers level.*.codebook, loss, gradients, parameters", "loss_finite": False,
          "fix": "mean over zero rows: keep the old centre (or draw a new one) when a cluster is empty"}


def build():
    torch.manual_seed(308)
    model = Quantiser()
    x = torch.randn(8, 6).mul(16).round().div(16)
    x[1] = x[0]                     # the same item twice, and the same code: sums of such numbers are exact on every processor
    with torch.no_grad():
        for p in model.encode.parameters():
            p.copy_(p.mul(16).round().div(16))

    def run(m):
        opt = torch.optim.Adam(m.parameters(), lr=1e-2)
        losses = []
        for _ in range(2):
            opt.zero_grad()
            loss = m(x)
            loss.backward()
            opt.step()
            losses.append(loss.detach())
        return torch.stack(losses)
    return model, run


if __name__ == "__main__":
    model, run = build()
    print("losses", run(model).tolist(), "NaN codes", [s.codebook.isnan().any(1).tolist() for s in model.level])
