"""Rotary positions with complex numbers, written as complex into an empty real buffer that is wholly filled, then read as real."""
import torch
import torch.nn as nn


class Rotary(nn.Module):
    def __init__(self, d=8):
        super().__init__(); self.q = nn.Linear(d, d)
        self.register_buffer("turn", torch.polar(torch.ones(6, d // 2), torch.outer(torch.arange(6.), 0.1 ** torch.arange(d // 2))))
    def forward(self, x):
        q = torch.view_as_complex(self.q(x).reshape(6, -1, 2)) * self.turn
        out = torch.empty(6, 4, 2)
        torch.view_as_complex(out).copy_(q)
        return out.flatten(1) * 2
def build():
    torch.manual_seed(6); m = Rotary(); x = torch.randn(6, 8)
    def run(m):
        with torch.no_grad():
            return m(x) + m(x)
    return m, run
