"""Text recogniser with CTC: loss is inf for one sample, then NaN weights, after some good steps."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv1d(3, 8, 3, stride=2, padding=1), nn.Linear(8, 5)

    def forward(self, x):
        return self.head(torch.relu(self.conv(x)).transpose(1, 2)).log_softmax(-1).transpose(0, 1)


EXPECT = {
    "kind": "first-nonfinite",
    "what": "inf",
    "op": "aten._ctc_loss",
    "module": None,
    "phase": "forward",
    "input_finite": True,
    "step": 1,
    "line": r"F\.ctc_loss\(",
    "reaches": "loss, gradient, parameters",
    "fix": "target longer than input: zero_infinity=True or drop the sample",
}


def build():
    torch.manual_seed(96)
    model = Reader()
    x = torch.randn(2, 3, 8)
    batches = [
        (torch.tensor([[1, 2, 0, 0, 0], [3, 4, 1, 0, 0]]), torch.tensor([2, 3])),
        (torch.tensor([[1, 2, 0, 0, 0], [3, 3, 1, 2, 4]]), torch.tensor([2, 5])),
    ]

    def run(m):
        opt = torch.optim.Adam(m.parameters(), lr=1e-2)
        losses = []
        for target, length in batches + batches[:1]:
            opt.zero_grad()
            p = m(x)
            loss = F.ctc_loss(p, target, torch.tensor([p.shape[0]] * 2), length)
            loss.backward()
            opt.step()
            losses.append(loss.item())
        return losses

    return model, run


if __name__ == "__main__":
    model, run = build()
    print("losses", run(model))

GROUP = "c"
CAUSE = "one transcript does not fit into the number of frames, its likelihood is 0 and CTC returns inf (zero_infinity is off)"
