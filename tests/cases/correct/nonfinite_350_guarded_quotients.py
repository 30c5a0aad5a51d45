"""Division and roots guarded twice: a safe denominator first, then where; the other branch is never non-finite."""
import torch
import torch.nn as nn
import torch.nn.functional as F

EXPECT = {"correct": True}


def quotient(a, b):
    zero = b == 0
    return torch.where(zero, torch.zeros_like(a), a / torch.where(zero, torch.ones_like(b), b))


def length(x):
    square = x.pow(2).sum(-1, keepdim=True)
    zero = square == 0
    return torch.where(zero, torch.zeros_like(square), torch.where(zero, torch.ones_like(square), square).sqrt())


class Pool(nn.Module):
    def forward(self, x, mask):
        m = mask[..., None].to(x.dtype)
        return quotient((x * m).sum(1), m.sum(1).expand(-1, x.shape[-1]))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.pool, self.head = nn.Linear(3, 5, bias=False), Pool(), nn.Linear(5, 2)

    def forward(self, x, mask):
        v = self.pool(self.lin(x), mask)
        unit = quotient(v, length(v).expand_as(v))
        return self.head(unit), F.cosine_similarity(v, v.roll(1, 0)), F.normalize(v, dim=-1)


def build():
    torch.manual_seed(350)
    model = Encoder()
    x, y = torch.randn(4, 6, 3), torch.tensor([0, 1, 1, 0])
    mask = torch.arange(6)[None] < torch.tensor([6, 2, 0, 4])[:, None]      # one sentence is empty

    def run(m):
        opt = torch.optim.SGD(m.parameters(), lr=0.1)
        losses = []
        for _ in range(3):
            opt.zero_grad()
            logits, near, unit = m(x, mask)
            loss = F.cross_entropy(logits, y) + 0.1 * near.mean() + 0.1 * unit.pow(2).mean()
            loss.backward()
            opt.step()
            losses.append(loss.detach())
        return torch.stack(losses)
    return model, run


if __name__ == "__main__":
    model, run = build()
    assert run(model).isfinite().all()
    assert all(p.isfinite().all() for p in model.parameters())
