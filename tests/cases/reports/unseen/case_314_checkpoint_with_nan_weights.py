"""Segmentation inference with a published checkpoint: every prediction is NaN, though loading reports no problem."""

import io

import torch
import torch.nn as nn

GROUP = "d"
CAUSE = "two thirds of one decoder weight in the file are NaN already"
REPORT = "cardwing/Codes-for-PVKD#9"


class Up(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.conv1, self.conv3 = nn.Conv1d(a, b, 3, padding=1), nn.Conv1d(b, b, 3, padding=1)

    def forward(self, x):
        return torch.relu(self.conv3(torch.relu(self.conv1(x)))).repeat_interleave(2, -1)


class Cylinder(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.up, self.head = nn.Conv1d(2, 8, 1), nn.ModuleList([Up(8, 6), Up(6, 4)]), nn.Conv1d(4, 3, 1)

    def forward(self, x):
        x = self.stem(x)
        for block in self.up:
            x = block(x)
        return self.head(x)


EXPECT = {"kind": "first-nonfinite", "what": "nan", "external": True, "name": "up.1.conv3.weight",
          "op": "aten.conv1d.default", "op_without_inference_mode": "aten.convolution.default", "module": "up.1.conv3",
          "phase": "forward", "line": r"self\.conv3\(torch\.relu", "input_finite": False, "first_inf": None,
          "reaches": "the result", "fix": "the parameter up.1.conv3.weight already held NaN: check the file"}


def published():
    state = Cylinder().state_dict()
    w = state["up.1.conv3.weight"].view(-1)
    w[: 2 * len(w) // 3] = float("nan")
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return file


def build():
    torch.manual_seed(314)
    file = published()
    model = Cylinder()
    model.load_state_dict(torch.load(file))
    x = torch.randn(1, 2, 5)

    def run(m):
        m.eval()
        with torch.inference_mode():
            return m(x).argmax(1), m(x)
    return model, run


if __name__ == "__main__":
    model, run = build()
    labels, scores = run(model)
    print("labels", labels.tolist(), "NaN scores", bool(scores.isnan().all()))
