"""Repaired 312: built on meta, materialised, loaded, and the buffer that is not in the file is computed again."""
import torch
import torch.nn as nn

EXPECT = {"correct": True}


class Rotary(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.d = d
        self.register_buffer("inv_freq", self.frequencies(), persistent=False)

    def frequencies(self, device=None):
        return 0.01 ** (torch.arange(self.d // 2, device=device) / (self.d // 2))

    def reset_parameters(self):
        self.inv_freq.copy_(self.frequencies(self.inv_freq.device))

    def forward(self, x):
        angle = torch.outer(torch.arange(x.shape[0], dtype=x.dtype), self.inv_freq)
        a, b = x.chunk(2, -1)
        return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


class Reader(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.embed, self.q, self.k, self.rotary = nn.Embedding(11, d), nn.Linear(d, d), nn.Linear(d, d), Rotary(d)

    def forward(self, ids):
        x = self.embed(ids)
        return (self.rotary(self.q(x)) @ self.rotary(self.k(x)).T / 8).softmax(-1) @ x


def build():
    torch.manual_seed(312)
    checkpoint = Reader().state_dict()
    with torch.device("meta"):
        model = Reader()
    ids = torch.tensor([3, 1, 4, 1, 5, 9])

    def run(m):
        junk = [torch.full((32,), 3e38) for i in range(4)]
        del junk
        m.to_empty(device="cpu")
        m.load_state_dict(checkpoint)
        m.rotary.reset_parameters()
        with torch.no_grad():
            return m.eval()(ids)
    return model, run


if __name__ == "__main__":
    torch.use_deterministic_algorithms(True)
    model, run = build()
    assert run(model).isfinite().all()
