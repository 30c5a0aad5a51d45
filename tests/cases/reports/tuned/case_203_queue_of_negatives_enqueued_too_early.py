"""Contrastive learning with a queue of negatives: the new keys are enqueued before the loss has gone backward."""

import torch
import torch.nn.functional as F
from torch import nn

GROUP = "a"
CAUSE = "the logits multiply with the queue itself, so matmul keeps it; enqueueing then overwrites a slice of it"
REPORT = "facebookresearch/moco#21"


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
        positive = (q * k).sum(1, keepdim=True)
        negative = q @ self.queue
        logits = torch.cat([positive, negative], 1) / 0.2
        self.enqueue(k)
        return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long))


EXPECT = {"kind": "inplace-after-save", "raises": r"modified by an inplace operation", "op": "aten.copy_.default",
          "module": "", "phase": "forward", "line": r"self\.queue\[:, self\.at:self\.at \+ n\] = k\.T",
          "victim_op": "aten.mm.default", "victim_module": "", "victim_line": r"negative = q @ self\.queue",
          "target": "buffer queue, through a slice", "times": 1}


def build():
    torch.manual_seed(203)
    model = Contrast()
    a, b = torch.randn(2, 6), torch.randn(2, 6)

    def run(m):
        opt = torch.optim.SGD(m.query.parameters(), lr=0.1)
        for _ in range(2):
            opt.zero_grad()
            m(a, b).backward()
            opt.step()
    return model, run


if __name__ == "__main__":
    model, run = build()
    try:
        run(model)
        print("no error")
    except RuntimeError as e:
        print("raised:", str(e)[:160])
