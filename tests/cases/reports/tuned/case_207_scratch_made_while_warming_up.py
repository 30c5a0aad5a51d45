"""A server warms its model up under inference_mode; the first real request, under no_grad, cannot fill the scratch."""

import torch
from torch import nn

GROUP = "a"
CAUSE = "the lazily made scratch is an inference tensor because the first call ran in inference_mode"
REPORT = "sgl-project/sglang#33470"


class Padded(nn.Module):
    def __init__(self, width=4, rows=6):
        super().__init__()
        self.lin, self.rows, self.scratch = nn.Linear(width, width), rows, None

    def forward(self, x):
        if self.scratch is None:
            self.scratch = x.new_zeros(self.rows, x.shape[1])
        self.scratch[:len(x)] = x
        return torch.relu(self.lin(self.scratch))[:len(x)]


class Server(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Padded(), Padded()])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


EXPECT = {"kind": "inplace-forbidden", "raises": r"Inplace update to inference tensor outside InferenceMode",
          "op": "aten.copy_.default", "op_seen": True, "module": "layers.0", "phase": "forward",
          "line": r"self\.scratch\[:len\(x\)\] = x",
          "target": "layers.0.scratch (made in the warm-up), through a slice",
          "created_by": {"op": "aten.new_zeros.default", "line": r"self\.scratch = x\.new_zeros"}}


def build():
    torch.manual_seed(207)
    model = Server().eval()
    warm, request = torch.zeros(2, 4), torch.randn(3, 4)

    def run(m):
        with torch.inference_mode():
            m(warm)
        with torch.no_grad():
            return m(request)
    return model, run


if __name__ == "__main__":
    model, run = build()
    try:
        run(model)
        print("no error")
    except RuntimeError as e:
        print("raised:", str(e)[:160])
