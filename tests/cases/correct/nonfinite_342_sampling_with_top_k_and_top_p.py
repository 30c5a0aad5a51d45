"""Sampling with banned tokens, top-k and top-p filters by -inf; beam search starts its spare beams at -inf."""
import torch
import torch.nn as nn

EXPECT = {"correct": True}
LOW = float("-inf")


class Voice(nn.Module):
    def __init__(self, words=12, d=6):
        super().__init__()
        self.embed, self.head = nn.Embedding(words, d), nn.Linear(d, words)

    def forward(self, ids):
        return self.head(torch.tanh(self.embed(ids)).mean(-2))


def filtered(scores, k, p):
    scores = scores.clone()
    scores[..., 0] = LOW
    scores = scores.masked_fill(scores < scores.topk(k).values[..., -1:], LOW)
    ordered, order = scores.sort(descending=True)
    mass = ordered.softmax(-1).cumsum(-1)
    drop = (mass - ordered.softmax(-1)) > p
    return scores.masked_fill(torch.zeros_like(drop).scatter(-1, order, drop), LOW)


def sample(m, ids, n):
    for _ in range(n):
        chance = (filtered(m(ids), 5, 0.8) / 0.7).softmax(-1)
        ids = torch.cat([ids, torch.multinomial(chance, 1)])
    return ids


def beams(m, start, width, n):
    seqs = start.expand(width, -1)
    total = torch.full((width,), LOW)
    total[0] = 0.0
    for _ in range(n):
        logp = m(seqs).log_softmax(-1)
        best, at = (total[:, None] + logp).flatten().topk(width)
        total, words = best, logp.shape[1]
        seqs = torch.cat([seqs[at // words], (at % words)[:, None]], 1)
    return seqs, total


def build():
    torch.manual_seed(342)
    model = Voice().eval()

    def run(m):
        with torch.no_grad():
            ids = sample(m, torch.tensor([1, 2]), 6)
            seqs, total = beams(m, torch.tensor([[1, 2]]), 3, 4)
            return ids, seqs, total
    return model, run


if __name__ == "__main__":
    model, run = build()
    assert all(t.isfinite().all() for t in run(model))
