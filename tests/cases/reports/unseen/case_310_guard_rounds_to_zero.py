"""Ranking distillation under float16 autocast: NaN for a query whose documents all score the same; bfloat16 is fine."""

import torch
import torch.nn as nn
import torch.nn.functional as F

GROUP = "c"
CAUSE = "the 1e-8 in (s - min) / (max - min + 1e-8) rounds to 0 in float16, so equal scores give 0 / 0"
REPORT = "lightonai/pylate#239"


class Towers(nn.Module):
    def __init__(self, d=4):
        super().__init__()
        self.query, self.document = nn.Linear(5, d), nn.Linear(5, d)

    def forward(self, q, docs):
        return torch.bmm(self.document(docs), self.query(q)[:, :, None]).squeeze(-1)


class Distillation(nn.Module):
    def __init__(self, towers, guard=1e-8):
        super().__init__()
        self.towers, self.guard = towers, guard

    def forward(self, q, docs, teacher):
        s = self.towers(q, docs)
        low, high = s.amin(1, keepdim=True), s.amax(1, keepdim=True)
        s = (s - low) / (high - low + self.guard)
        return F.kl_div(s.log_softmax(1), teacher, reduction="batchmean")


EXPECT = {"kind": "first-nonfinite", "what": "nan", "op": "aten.div.Tensor", "module": "", "phase": "forward",
          "input_finite": True, "line": r"s = \(s - low\) / ", "first_inf": None, "step": 2, "loss_finite": False,
          "reaches": "loss, gradients, parameters",
          "fix": "0 / 0 in float16: the guard 1e-8 is below the smallest float16; normalise in float32"}


def build():
    torch.manual_seed(310)
    model = Distillation(Towers())
    batches = [(torch.randn(2, 5), torch.randn(2, 3, 5), torch.randn(2, 3).softmax(1)) for _ in range(4)]
    batches[2][1][1] = batches[2][1][1, :1]         # one query was given the same document three times

    def run(m):
        opt = torch.optim.SGD(m.parameters(), lr=1e-2)
        losses = []
        for q, docs, teacher in batches:
            opt.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = m(q, docs, teacher)
            loss.backward()
            opt.step()
            losses.append(loss.detach())
        return torch.stack(losses)
    return model, run


if __name__ == "__main__":
    model, run = build()
    print("losses", run(model).tolist())
