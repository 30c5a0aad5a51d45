"""A spectrogram multiplies its overlapping frames with the window in place: samples are windowed many times."""

import torch
from torch import nn

GROUP = "e"
CAUSE = "unfold is a view whose frames share samples; torch does not notice and multiplies a sample once per frame"
REPORT = "pytorch/pytorch#98143"


class Frames(nn.Module):
    def __init__(self, size=4, hop=2):
        super().__init__()
        self.size, self.hop = size, hop
        self.register_buffer("window", torch.hann_window(size, periodic=False) + 0.1)

    def forward(self, wave):
        frames = wave.clone().unfold(-1, self.size, self.hop)
        frames.mul_(self.window)
        return torch.fft.rfft(frames).abs()


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.front, self.head = Frames(), nn.Linear(3, 2)

    def forward(self, wave):
        return self.head(self.front(wave)).mean(1)


EXPECT = {"kind": "internal-overlap-write", "raises": None, "silent": True, "op": "aten.mul_.Tensor",
          "module": "front", "phase": "forward", "line": r"frames\.mul_\(self\.window\)",
          "target": "frames (unfold view, strides (10, 2, 1) for size 4 and hop 2)", "strides": (10, 2, 1), "times": 2}


def build():
    torch.manual_seed(212)
    model, waves = Tagger().eval(), [torch.randn(2, 10) for _ in range(2)]

    def run(m):
        with torch.no_grad():
            return [m(w) for w in waves]
    return model, run


if __name__ == "__main__":
    model, run = build()
    wave = torch.ones(1, 10)
    right = torch.fft.rfft(wave.unfold(-1, 4, 2) * model.front.window).abs()
    print("first bin, all frames alike in a constant signal, should be:", right[0, :, 0].tolist())
    print("is:", model.front(wave)[0, :, 0].tolist())
