"""Repaired 313: the gradient of ragged rows starts as zeros; truncated rows get no gradient."""
import torch
import torch.nn as nn

EXPECT = {"correct": True}


class PackSegments(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, lengths, limit):
        ctx.lengths, ctx.limit = lengths, limit
        out = rows.new_empty(len(lengths), limit, rows.shape[1])
        at = 0
        for i, n in enumerate(lengths):
            k = min(n, limit)
            out[i, :k] = rows[at:at + k]
            out[i, k:] = 0
            at += n
        return out

    @staticmethod
    def backward(ctx, grad):
        back = grad.new_zeros(sum(ctx.lengths), grad.shape[2])
        at = 0
        for i, n in enumerate(ctx.lengths):
            k = min(n, ctx.limit)
            back[at:at + k] = grad[i, :k]
            at += n
        return back, None, None


class Events(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.encode, self.head = nn.Linear(8, d), nn.Linear(d, 1)

    def forward(self, events, lengths):
        seq = PackSegments.apply(torch.tanh(self.encode(events)), lengths, 16)
        return self.head(seq.sum(1)).squeeze(-1)


def build():
    torch.manual_seed(313)
    model = Events()
    batches = [([10, 16], torch.randn(26, 8), torch.randn(2)), ([24, 16], torch.randn(40, 8), torch.randn(2))]

    def run(m):
        opt = torch.optim.SGD(m.parameters(), lr=1e-3)
        for lengths, events, y in batches:
            loss = (m(events, lengths) - y).pow(2).mean()
            junk = torch.full((40, 32), 3e38)
            del junk
            opt.zero_grad()
            loss.backward()
            opt.step()
        return loss.detach()
    return model, run


if __name__ == "__main__":
    torch.use_deterministic_algorithms(True)
    model, run = build()
    assert run(model).isfinite()
    assert all(p.isfinite().all() for p in model.parameters())
