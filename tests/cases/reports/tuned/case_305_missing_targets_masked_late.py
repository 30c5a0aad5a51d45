"""Sensor readings with gaps: the loss skips missing targets and is right, yet the first gap makes all weights NaN."""

import torch
import torch.nn as nn

GROUP = "c"
CAUSE = (
    "missing targets are NaN; where() removes their squared error, but the square's backward multiplies "
    "a zero by NaN"
)
REPORT = "pytorch/pytorch#89543"


class GapMSE(nn.Module):
    def forward(self, pred, target):
        known = ~torch.isnan(target)
        error = (pred - target) ** 2
        return torch.where(known, error, torch.zeros(())).sum() / known.sum()


class Station(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru, self.read, self.loss = nn.GRU(2, 5, batch_first=True), nn.Linear(5, 1), GapMSE()

    def forward(self, x, target):
        h, _ = self.gru(x)
        return self.loss(self.read(h).squeeze(-1), target)


EXPECT = {"kind": "first-nonfinite", "what": "nan", "op": "aten.mul.Tensor", "phase": "backward",
          "module": "loss", "module_basis": "forward node", "fwd_op": "aten.pow.Tensor_Scalar",
          "line": r"\(pred - target\) \*\* 2", "input_finite": False, "external": True,
          "external_read": {"op": "aten.sub.Tensor", "module": "loss", "phase": "forward", "what": "nan",
                            "name": "the batch's target", "deliberate": True,
                            "note": "an isnan guard follows; the NaN is a mark for 'missing'"},
          "first_inf": None, "step": 1, "reaches": "gradients, parameters", "loss_finite": True,
          "fix": "replace missing targets before the subtraction (where/nan_to_num), not after the square"}


def build():
    torch.manual_seed(305)
    model = Station()
    batches = [(torch.randn(2, 6, 2), torch.randn(2, 6)) for _ in range(3)]
    batches[1][1][0, 2:4] = float("nan")

    def run(m):
        opt = torch.optim.SGD(m.parameters(), lr=0.1)
        losses = []
        for x, y in batches:
            opt.zero_grad()
            loss = m(x, y)
            loss.backward()
            opt.step()
            losses.append(loss.detach())
        return torch.stack(losses)
    return model, run


if __name__ == "__main__":
    model, run = build()
    print("losses", run(model).tolist(), "NaN weights", bool(model.read.weight.isnan().any()))
