"""Repaired 205: the running matrices are a clone of the expanded identity and are updated in place under no_grad."""

import torch
from torch import nn

EXPECT = {"correct": True}


class Whiten(nn.Module):
    def __init__(self, groups=2, width=3, momentum=0.1):
        super().__init__()
        self.groups, self.width, self.momentum = groups, width, momentum
        self.register_buffer("running", torch.eye(width).expand(groups, width, width).clone())

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


def build():
    torch.manual_seed(205)
    model, x = Net(), torch.randn(16, 4)

    def run(m):
        opt = torch.optim.SGD(m.parameters(), lr=0.01)
        m.train()
        for _ in range(2):
            opt.zero_grad()
            m(x).pow(2).mean().backward()
            opt.step()
        m.eval()
        with torch.no_grad():
            return m(x), x
    return model, run


if __name__ == "__main__":
    model, run = build()
    want, scales = torch.eye(3).repeat(2, 1, 1), []
    real = torch.linalg.inv

    def keep(a):
        scales.append(real(a))
        return scales[-1]
    torch.linalg.inv = keep
    run(model)
    for s in scales:
        want = 0.9 * want + 0.1 * s.detach()
    torch.testing.assert_close(model.white.running, want)
    assert not torch.allclose(want[0], want[1])
    print("right")
