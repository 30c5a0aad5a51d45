"""Repaired 218: forward clones its argument before it writes each member's step into it."""

import torch
from torch import nn

EXPECT = {"correct": True}


class Core(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.mix = nn.Linear(width, width)

    def forward(self, x):
        return x + 0.5 * torch.tanh(self.mix(x))


class Forecast(nn.Module):
    def __init__(self):
        super().__init__()
        self.core = Core()

    def forward(self, x):
        x = x.clone()
        for i in range(len(x)):
            x[i:i + 1] = self.core(x[i:i + 1])
        return x


def build():
    torch.manual_seed(218)
    model, analysis = Forecast().eval(), torch.randn(2, 4)

    def run(m):
        state, steps = analysis, []
        with torch.no_grad():
            for _ in range(3):
                state = m(state)
                steps.append(state)
            return [float((s - analysis).abs().mean()) for s in steps], analysis
    return model, run


if __name__ == "__main__":
    model, run = build()
    got, state = run(model)
    start = state
    with torch.no_grad():
        for g in got:
            state = state + 0.5 * torch.tanh(model.core.mix(state))
            assert abs(g - float((state - start).abs().mean())) < 1e-5
    print("right")
