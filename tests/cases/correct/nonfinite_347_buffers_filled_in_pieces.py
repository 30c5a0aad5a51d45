"""torch.empty filled completely, but in pieces and in several ways, before anyone reads it."""
import torch
import torch.nn as nn

EXPECT = {"correct": True}


class Cache(nn.Module):
    def __init__(self, room, d):
        super().__init__()
        self.k, self.v, self.room, self.d = nn.Linear(d, d), nn.Linear(d, d), room, d
        self.store, self.used = None, 0

    def forward(self, x):
        if self.store is None:
            self.store = torch.empty(2, self.room, self.d)
        end = self.used + len(x)
        self.store[0, self.used:end] = self.k(x)
        self.store[1].narrow(0, self.used, len(x)).copy_(self.v(x))
        self.used = end
        k, v = self.store[:, :end]
        return (x @ k.T).softmax(-1) @ v


def padded(rows, width):
    out = torch.empty(len(rows), width)
    for i, r in enumerate(rows):
        out[i, :len(r)] = r
        out[i, len(r):].zero_()
    return out


def interleaved(a, b):
    out = a.new_empty(2 * len(a), a.shape[1])
    out[0::2], out[1::2] = a, b
    return out


def gathered(parts):
    out = torch.empty(sum(len(p) for p in parts), parts[0].shape[1])
    torch.cat(parts, out=out)
    square = torch.empty(parts[0].shape[1], parts[0].shape[1])
    torch.mm(out.T, out, out=square)
    noise = torch.empty_like(square)
    noise.uniform_()
    return square + noise


def build():
    torch.manual_seed(347)
    model = Cache(12, 16)
    x = torch.randn(8, 16)

    def run(m):
        junk = [torch.full(s, 3e38) for s in ((2, 12, 16), (3, 16), (8, 16), (16, 16))]
        del junk
        with torch.no_grad():
            y = torch.cat([m(x[:4]), m(x[4:6]), m(x[6:])])
            p = padded([x[0], x[1][:5], x[2][:9]], 16)
            return y, p.sum(), interleaved(y[:4], y[4:]).mean(0), gathered([y, p]).sum()
    return model, run


if __name__ == "__main__":
    torch.use_deterministic_algorithms(True)
    model, run = build()
    assert all(t.isfinite().all() for t in run(model))
