"""Inpainting: losses are NaN sooner or later, a smaller learning rate only moves the moment."""

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

GROUP = "c"
CAUSE = (
    "the data set scales each picture by (p - min) / (max - min) in numpy; one picture is flat, so the "
    "batch itself holds NaN"
)
REPORT = "avalonstrel/GatedConvolution_pytorch#27"


class Pictures(Dataset):
    def __init__(self, pictures):
        self.pictures = pictures

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, i):
        p = self.pictures[i]
        with np.errstate(all="ignore"):
            return 2 * (p - p.min()) / (p.max() - p.min()) - 1


def collate(items):
    return torch.from_numpy(np.stack(items))


class Gated(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.feature, self.gate = nn.Conv2d(a, b, 3, padding=1), nn.Conv2d(a, b, 3, padding=1)

    def forward(self, x):
        return torch.tanh(self.feature(x)) * torch.sigmoid(self.gate(x))


class Painter(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.dec = Gated(1, 3), nn.Conv2d(3, 1, 1)

    def forward(self, x):
        return self.dec(self.enc(x))


EXPECT = {"kind": "first-nonfinite", "what": "nan", "external": True, "name": "the batch", "op": "aten.mul.Tensor",
          "module": None, "phase": "forward", "line": r"hole \* picture", "input_finite": False, "first_inf": None,
          "step": 2, "loss_finite": False, "reaches": "loss, gradients, parameters",
          "enters": {"op": "aten.lift_fresh.default", "line": r"torch\.from_numpy\(np\.stack"},
          "fix": "the input already holds NaN: max == min in the data set's scaling"}


def build():
    torch.manual_seed(315)
    rng = np.random.default_rng(315)
    pictures = [rng.random((1, 6, 6), dtype=np.float32) for _ in range(8)]
    pictures[5][:] = 0.25
    model = Painter()
    hole = torch.ones(1, 1, 6, 6)
    hole[..., 2:4, 2:4] = 0
    loader = DataLoader(Pictures(pictures), batch_size=2, collate_fn=collate)

    def run(m):
        opt = torch.optim.Adam(m.parameters(), lr=1e-3)
        losses = []
        for picture in loader:
            opt.zero_grad()
            loss = (m(hole * picture) - picture).abs().mean()
            loss.backward()
            opt.step()
            losses.append(loss.detach())
        return torch.stack(losses)
    return model, run


if __name__ == "__main__":
    model, run = build()
    print("losses", run(model).tolist())
