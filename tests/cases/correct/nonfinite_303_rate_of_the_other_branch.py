"""Repaired 303: the argument of exp is clamped before the where; an outlier row is harmless."""
import torch
import torch.nn as nn

EXPECT = {"correct": True}


class Rate(nn.Module):
    def forward(self, a):
        return torch.where(a <= 0, torch.exp(a.clamp(max=0)), 1 + a)


class Intensity(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.out, self.rate = nn.Linear(3, 6), nn.Linear(6, 1), Rate()

    def forward(self, x):
        return self.rate(self.out(torch.relu(self.hidden(x)))).squeeze(-1)


def build():
    torch.manual_seed(303)
    model = Intensity()
    batches = [(torch.randn(6, 3), torch.randint(0, 4, (6,)).float()) for _ in range(4)]
    with torch.no_grad():
        model.out.weight.abs_()
        batches[2][0][4] = 900 * torch.sign(model.hidden.weight[0])

    def run(m):
        opt = torch.optim.Adam(m.parameters(), lr=1e-3)
        losses = []
        for x, count in batches:
            loss = (m(x) - count).abs().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.detach())
        return torch.stack(losses)
    return model, run


if __name__ == "__main__":
    model, run = build()
    assert run(model).isfinite().all()
    assert all(p.isfinite().all() for p in model.parameters())
