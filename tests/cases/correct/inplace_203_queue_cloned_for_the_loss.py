"""Repaired 203: the logits use a clone of the queue, which may then be overwritten slice by slice."""

import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {"correct": True}


class Contrast(nn.Module):
    def __init__(self, dim=4, size=8):
        super().__init__()
        self.query, self.key = nn.Linear(6, dim), nn.Linear(6, dim)
        self.register_buffer("queue", F.normalize(torch.randn(dim, size), dim=0))
        self.at = 0

    @torch.no_grad()
    def enqueue(self, k):
        n = len(k)
        self.queue[:, self.at:self.at + n] = k.T
        self.at = (self.at + n) % self.queue.shape[1]

    def forward(self, view_a, view_b):
        q = F.normalize(self.query(view_a), dim=1)
        with torch.no_grad():
            k = F.normalize(self.key(view_b), dim=1)
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ self.queue.clone()], 1) / 0.2
        self.enqueue(k)
        return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long))


def build():
    torch.manual_seed(203)
    model = Contrast()
    a, b = torch.randn(2, 6), torch.randn(2, 6)

    def run(m):
        opt = torch.optim.SGD(m.query.parameters(), lr=0.1)
        grads = []
        for _ in range(3):
            opt.zero_grad()
            m(a, b).backward()
            grads.append(m.query.weight.grad.clone())
            opt.step()
        return grads, (a, b)
    return model, run


if __name__ == "__main__":
    model, run = build()
    grads, (a, b) = run(model)
    fresh, _ = build()
    w = fresh.query.weight
    q, k = F.normalize(fresh.query(a), dim=1), F.normalize(fresh.key(b), dim=1).detach()
    logits = torch.cat([(q * k).sum(1, keepdim=True), q @ fresh.queue], 1) / 0.2
    (want,) = torch.autograd.grad(F.cross_entropy(logits, torch.zeros(2, dtype=torch.long)), w)
    torch.testing.assert_close(grads[0], want)
    torch.testing.assert_close(model.queue[:, 0:2], k.T)
    torch.testing.assert_close(model.queue[:, 6:], fresh.queue[:, 6:])
    print("right")
