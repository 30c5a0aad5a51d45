"""Repaired 212: the frames are cloned before the window is multiplied in; overlap-add is in place."""

import torch
from torch import nn

EXPECT = {"correct": True}


class Smooth(nn.Module):
    def __init__(self, size=4, hop=2):
        super().__init__()
        self.size, self.hop = size, hop
        self.gain = nn.Linear(size, size)
        self.register_buffer("window", torch.hann_window(size, periodic=True))

    def forward(self, wave):
        frames = wave.unfold(-1, self.size, self.hop).clone()
        frames.mul_(self.window)
        frames = self.gain(frames)
        out = torch.zeros_like(wave)
        for i in range(frames.shape[1]):
            out[:, i * self.hop:i * self.hop + self.size] += frames[:, i]
        return out


def build():
    torch.manual_seed(212)
    model, waves = Smooth(), [torch.randn(2, 10) for _ in range(2)]

    def run(m):
        m.zero_grad()
        outs = [m(w) for w in waves]
        sum(o.pow(2).mean() for o in outs).backward()
        return outs, waves
    return model, run


if __name__ == "__main__":
    model, run = build()
    outs, waves = run(model)
    got = model.gain.weight.grad.clone()
    loss = 0
    for out, wave in zip(outs, waves):
        frames = model.gain(wave.unfold(-1, 4, 2) * model.window)
        want = sum(torch.nn.functional.pad(frames[:, i], (2 * i, 6 - 2 * i)) for i in range(4))
        torch.testing.assert_close(out, want)
        loss = loss + want.pow(2).mean()
    (want,) = torch.autograd.grad(loss, model.gain.weight)
    torch.testing.assert_close(got, want)
    print("right")
