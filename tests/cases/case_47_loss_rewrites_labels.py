"""Masked loss fills ignored labels in a reshaped view, so the caller's batch is rewritten; the second loss is 0."""

import torch
import torch.nn as nn
import torch.nn.functional as F

GROUP = "e"
CAUSE = "labels.view(-1) is an alias; masked_fill_ on it writes the caller's label tensor"


class MaskedCE(nn.Module):
    def forward(self, logits, labels, mask):
        flat = labels.view(-1)
        flat.masked_fill_(mask.view(-1) == 0, -100)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), flat, reduction="sum")


class Lm(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.crit = nn.Embedding(9, 9), MaskedCE()

    def forward(self, ids, labels, mask):
        return self.crit(self.emb(ids), labels, mask)


EXPECT = {
    "kind": "caller-tensor-overwritten",
    "raises": None,
    "silent": True,
    "op": "aten.masked_fill_.Scalar",
    "module": "crit",
    "phase": "forward",
    "line": r"flat\.masked_fill_",
    "target": "argument `labels` of the model (int64, through a view)",
    "dtype": "torch.int64",
    "times": 2,
    "note": "with one backward over a + b it would be a version error on the int64 targets instead",
}


def build():
    torch.manual_seed(47)
    model = Lm()
    ids, labels = torch.randint(0, 9, (2, 6)), torch.randint(0, 9, (2, 6))
    first = torch.tensor([[1, 1, 1, 0, 0, 0]] * 2)

    def run(m):
        y = labels.clone()
        a = m(ids, y, first)
        a.backward()
        b = m(ids, y, 1 - first)
        b.backward()
        return a.item(), b.item()

    return model, run
