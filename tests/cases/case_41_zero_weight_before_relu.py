"""A mixing head starts with all-zero weights, has no bias and ends in ReLU: it can never learn."""

import torch
import torch.nn as nn

GROUP = "d"
CAUSE = "pre-activation is exactly 0, ReLU's gradient at 0 is 0, so neither the head nor what feeds it gets a gradient"


EXPECT = {
    "kind": "dead-activation",
    "module": "mixer.1",
    "op": "aten.relu.default",
    "phase": "forward",
    "out_zero_fraction": 1.0,
    "every_step": True,
    "zero_grad_param": "mixer.0.weight",
    "first_zero_grad_op": {"op": "aten.threshold_backward.default", "module": "mixer.1"},
}


class Blend(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4)
        lin = nn.Linear(4, 3, bias=False)
        nn.init.zeros_(lin.weight)
        self.mixer = nn.Sequential(lin, nn.ReLU())
        self.out = nn.Linear(7, 1)

    def forward(self, x):
        h = torch.tanh(self.body(x))
        return self.out(torch.cat([h, self.mixer(h)], -1))


def build():
    torch.manual_seed(41)
    model = Blend()
    x, y = torch.randn(8, 4), torch.randn(8, 1)

    def run(m):
        opt = torch.optim.SGD(m.parameters(), lr=0.1)
        for _ in range(5):
            loss = (m(x) - y).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        return float(m.mixer[0].weight.detach().abs().sum())

    return model, run
