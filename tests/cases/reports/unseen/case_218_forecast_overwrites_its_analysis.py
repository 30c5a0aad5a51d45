"""A weather roll-out writes each step into its input: the analysis and all kept steps end up as the last forecast."""

import torch
from torch import nn

GROUP = "e"
CAUSE = "forward assigns its result into slices of the argument and returns it; every kept step is the same storage"
REPORT = "NVIDIA/earth2studio#1133"


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
        for i in range(len(x)):
            x[i:i + 1] = self.core(x[i:i + 1])
        return x


EXPECT = {"kind": "caller-tensor-overwritten", "raises": None, "silent": True, "op": "aten.copy_.default",
          "module": "", "phase": "forward", "line": r"x\[i:i \+ 1\] = self\.core", "target": "argument `x`",
          "dtype": "torch.float32", "times": 6, "victim_op": "aten.sub.Tensor (the error against the analysis)"}


def build():
    torch.manual_seed(218)
    model, analysis = Forecast().eval(), torch.randn(2, 4)

    def run(m):
        state, steps = analysis.clone(), []
        start = state
        with torch.no_grad():
            for _ in range(3):
                state = m(state)
                steps.append(state)
            return [float((s - start).abs().mean()) for s in steps]
    return model, run


if __name__ == "__main__":
    model, run = build()
    print("distance of each step from the analysis (should grow from step to step):", run(model))
