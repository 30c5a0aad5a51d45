"""Vocoder with a phase loss: losses are finite, gradients are NaN for the clip that fades out into silence."""

import torch
import torch.nn as nn

GROUP = "c"
CAUSE = "angle's backward divides by the squared magnitude, which underflows to 0 for tiny but non-zero bins: 0 / 0"
REPORT = "pytorch/pytorch#98276"


class Vocoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(16, 16, bias=False)

    def forward(self, frames, envelope):
        return self.mix(frames) * envelope


class PhaseLoss(nn.Module):
    def forward(self, wave, target):
        spectrum, wanted = torch.fft.rfft(wave), torch.fft.rfft(target)
        gap = torch.angle(spectrum) - torch.angle(wanted)
        return (1 - torch.cos(gap)).mean()


class Task(nn.Module):
    def __init__(self):
        super().__init__()
        self.vocoder, self.loss = Vocoder(), PhaseLoss()

    def forward(self, frames, envelope, target):
        return self.loss(self.vocoder(frames, envelope), target)


EXPECT = {"kind": "first-nonfinite", "what": "nan", "op": "aten.div.Tensor", "phase": "backward", "module": "loss",
          "module_basis": "forward node", "fwd_op": "aten.angle.default", "line": r"torch\.angle\(spectrum\)",
          "input_finite": True, "first_inf": None, "step": 2, "reaches": "gradients, parameters", "loss_finite": True,
          "note": "0 / 0 and x / 0 in one op: the result has NaN and inf; torch guards exact zeros, not tiny ones",
          "fix": "the squared magnitude of tiny bins underflows to 0: mask silent bins before angle, or add a floor"}


def build():
    torch.manual_seed(301)
    model = Task()
    frames, target = torch.randn(3, 4, 16), torch.randn(3, 4, 16)
    envelope = torch.ones(3, 4, 1)
    envelope[2, :, 0] = torch.tensor([1.0, 1e-8, 1e-16, 1e-24])     # the clip of the last batch fades out

    def run(m):
        opt = torch.optim.Adam(m.parameters(), lr=1e-2)
        losses = []
        for x, e, y in zip(frames, envelope, target, strict=True):
            opt.zero_grad()
            loss = m(x, e, y)
            loss.backward()
            opt.step()
            losses.append(loss.detach())
        return torch.stack(losses)
    return model, run


if __name__ == "__main__":
    model, run = build()
    print("losses", run(model).tolist(), "weight", model.vocoder.mix.weight[0, :3].tolist())
