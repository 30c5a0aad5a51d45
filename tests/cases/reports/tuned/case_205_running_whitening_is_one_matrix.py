"""A whitening norm keeps one running matrix per group; the first training step refuses to update them."""

import torch
from torch import nn

GROUP = "a"
CAUSE = "the running buffer is an expanded identity, all groups are the same memory; an in-place update is refused"
REPORT = "huangleiBuaa/IterNorm-pytorch#2"


class Whiten(nn.Module):
    def __init__(self, groups=2, width=3, momentum=0.1):
        super().__init__()
        self.groups, self.width, self.momentum = groups, width, momentum
        self.register_buffer("running", torch.eye(width).expand(groups, width, width))

    def forward(self, x):
        g = x.reshape(len(x), self.groups, self.width).transpose(0, 1)
        if self.training:
            g = g - g.mean(1, keepdim=True)
            cov = g.transpose(1, 2) @ g / g.shape[1] + 0.1 * torch.eye(self.width)
            scale = torch.linalg.inv(torch.linalg.cholesky(cov))
            with torch.no_grad():
                self.running.mul_(1 - self.momentum).add_(scale, alpha=self.momentum)
        else:
            scale = self.running
        return (g @ scale.transpose(1, 2)).transpose(0, 1).reshape(x.shape)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift, self.white, self.out = nn.Linear(4, 6), Whiten(), nn.Linear(6, 1)

    def forward(self, x):
        return self.out(torch.relu(self.white(self.lift(x))))


EXPECT = {"kind": "internal-overlap-write", "raises": r"more than one element of the written-to tensor",
          "op": "aten.mul_.Tensor", "module": "white", "phase": "forward", "line": r"self\.running\.mul_\(",
          "target": "buffer white.running (expand: stride 0 in dim 0)", "strides": (0, 3, 1)}


def build():
    torch.manual_seed(205)
    model, x = Net(), torch.randn(16, 4)

    def run(m):
        m.train()
        m(x).pow(2).mean().backward()
    return model, run


if __name__ == "__main__":
    model, run = build()
    try:
        run(model)
        print("no error")
    except RuntimeError as e:
        print("raised:", str(e)[:160])
