"""Repaired 94: logaddexp by double where; -inf stays as the neutral element in forward."""
import torch
import torch.nn as nn

NEG = float("-inf")
def add(a, b):
    dead = (a == NEG) & (b == NEG)
    s = torch.logaddexp(a.masked_fill(dead, 0.0), b.masked_fill(dead, 0.0))
    return s.masked_fill(dead, NEG)
class Chain(nn.Module):
    def __init__(self):
        super().__init__(); self.emit, self.jump = nn.Linear(4, 3), nn.Parameter(torch.zeros(3, 3))
        self.register_buffer("banned", torch.tensor([[0, 0, 1], [1, 0, 1], [1, 1, 0]], dtype=torch.bool))
    def forward(self, x):
        e = self.emit(x); t = self.jump.masked_fill(self.banned, NEG)
        alpha = torch.where(torch.arange(3) == 0, e[0], torch.tensor(NEG))
        for row in e[1:]:
            paths = alpha[:, None] + t
            alpha = add(add(paths[0], paths[1]), paths[2]) + row
        return -torch.logsumexp(alpha, 0)
def build():
    torch.manual_seed(2); m = Chain(); x = torch.randn(4, 4)
    def run(m):
        opt = torch.optim.Adam(m.parameters(), lr=1e-2)
        for _ in range(3):
            opt.zero_grad(); m(x).backward(); opt.step()
    return m, run
