"""Variational graph autoencoder: NaN loss on a data set with unscaled features."""

import torch
import torch.nn as nn


class Sampler(nn.Module):
    def forward(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        return mu + std * torch.randn_like(std)


class Vgae(nn.Module):
    def __init__(self):
        super().__init__()
        self.mu, self.logvar = nn.Linear(6, 4), nn.Linear(6, 4)
        self.sample, self.decode = Sampler(), nn.Linear(4, 6)

    def forward(self, x):
        mu, logvar = self.mu(x), self.logvar(x)
        y = self.decode(self.sample(mu, logvar))
        kl = -0.5 * (1 + logvar - mu**2 - torch.exp(logvar)).sum(-1).mean()
        return (y - x).pow(2).mean() + kl


EXPECT = {
    "kind": "first-nonfinite",
    "what": "inf",
    "op": "aten.exp.default",
    "module": "sample",
    "phase": "forward",
    "input_finite": True,
    "line": r"torch\.exp\(0\.5 \* logvar\)",
    "then": "NaN in decode (aten.addmm.default)",
    "second": r"torch\.exp\(logvar\) in the root",
    "reaches": "loss, gradients, parameters",
    "fix": "input to exp above 88.7: clamp logvar / scale the data",
}


def build():
    torch.manual_seed(102)
    model = Vgae()
    x = torch.randn(3, 6) * 300

    def run(m):
        opt = torch.optim.Adam(m.parameters(), lr=1e-3)
        loss = m(x)
        loss.backward()
        opt.step()
        return loss

    return model, run


if __name__ == "__main__":
    model, run = build()
    print("loss", float(run(model).detach()), "NaN weights:", bool(model.decode.weight.isnan().any()))

GROUP = "c"
CAUSE = "the log-variance head is unbounded; exp overflows to inf in the reparametrisation, and inf - inf or inf * 0 follows in the decoder"
