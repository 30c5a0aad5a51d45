"""Distillation with a top-k pruned teacher: the divergence is NaN from the first pruned batch on."""

import torch
import torch.nn as nn

GROUP = "c"
CAUSE = "p * log(p / q) with p exactly 0: log(0) is -inf and 0 * -inf is NaN"
REPORT = "Lightning-AI/torchmetrics#1029"


class Divergence(nn.Module):
    def forward(self, p, q):
        ratio = torch.log(p / q)
        return (p * ratio).sum(-1).mean()


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(5, 8), nn.Linear(8, 4)

    def forward(self, x):
        return self.head(torch.relu(self.body(x))).softmax(-1)


class Distil(nn.Module):
    def __init__(self):
        super().__init__()
        self.student, self.divergence = Student(), Divergence()

    def forward(self, x, p):
        return self.divergence(p, self.student(x))


EXPECT = {"kind": "first-nonfinite", "what": "nan (made of inf)", "op": "aten.mul.Tensor", "module": "divergence",
          "phase": "forward", "input_finite": False, "line": r"\(p \* ratio\)",
          "first_inf": {"op": "aten.log.default", "module": "divergence", "phase": "forward", "input_finite": True,
                        "line": r"torch\.log\(p / q\)"},
          "step": 2, "loss_finite": False, "reaches": "loss, gradients, parameters",
          "fix": "0 * log 0: use torch.xlogy or F.kl_div, which define it as 0"}


def build():
    torch.manual_seed(317)
    model = Distil()
    soft = [torch.randn(3, 4).softmax(-1) for _ in range(4)]
    for t in soft[2:]:                              # pruning starts after the warm-up
        t[t < t.topk(2).values[:, -1:]] = 0.0
        t /= t.sum(-1, keepdim=True)
    xs = [torch.randn(3, 5) for _ in soft]

    def run(m):
        opt = torch.optim.Adam(m.parameters(), lr=1e-2)
        losses = []
        for x, p in zip(xs, soft, strict=True):
            opt.zero_grad()
            loss = m(x, p)
            loss.backward()
            opt.step()
            losses.append(loss.detach())
        return torch.stack(losses)
    return model, run


if __name__ == "__main__":
    model, run = build()
    print("losses", run(model).tolist())
