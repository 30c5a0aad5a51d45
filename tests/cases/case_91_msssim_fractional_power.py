"""Multi-scale similarity as a training score: NaN as soon as picture and target are anti-correlated."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Similarity(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("share", torch.tensor([0.3, 0.3, 0.4]))

    def forward(self, a, b):
        terms = []
        for _ in range(3):
            ma, mb = a.mean((-2, -1)), b.mean((-2, -1))
            cov = (a * b).mean((-2, -1)) - ma * mb
            var = a.var((-2, -1), correction=0) + b.var((-2, -1), correction=0)
            terms.append((2 * cov + 9e-4) / (var + 9e-4))
            a, b = F.avg_pool2d(a, 2), F.avg_pool2d(b, 2)
        powers = torch.stack(terms) ** self.share[:, None, None]
        return powers.prod(0).mean()


class Restorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.paint, self.score = nn.Conv2d(1, 1, 1), Similarity()
        with torch.no_grad():
            self.paint.weight.fill_(-1.0)
            self.paint.bias.fill_(1.0)

    def forward(self, x, target):
        return 1 - self.score(self.paint(x), target)


EXPECT = {
    "kind": "first-nonfinite",
    "what": "nan",
    "op": "aten.pow.Tensor_Tensor",
    "module": "score",
    "phase": "forward",
    "input_finite": True,
    "line": r"\*\* self\.share",
    "first_inf": None,
    "reaches": "loss, gradient, parameter",
    "fix": "the base is negative: clamp the terms at 0 (or shift to 0..1) before the power",
}


def build():
    torch.manual_seed(90)
    model = Restorer()
    x = torch.rand(2, 1, 8, 8)

    def run(m):
        opt = torch.optim.SGD(m.parameters(), lr=0.1)
        loss = m(x, x)
        loss.backward()
        opt.step()
        return loss

    return model, run


if __name__ == "__main__":
    model, run = build()
    print("loss", float(run(model).detach()), "weight", model.paint.weight.item())

GROUP = "c"
CAUSE = "the contrast-structure term is negative (negative covariance) and is raised to a fractional power"
