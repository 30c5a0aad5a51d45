"""Training fails in some runs only: one projection is a bare nn.Parameter(torch.empty()) that nobody ever fills."""

import torch
import torch.nn as nn


class Hop(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.embed = nn.Embedding(10, d)
        self.query = nn.Parameter(torch.empty(d, d))

    def forward(self, i, j):
        q = self.embed(i) @ self.query
        return (q * self.embed(j)).sum(-1)


EXPECT = {
    "kind": "first-nonfinite",
    "what": "nan",
    "external": True,
    "op": "aten.mm.default",
    "module": "",
    "phase": "forward",
    "line": r"self\.embed\(i\) @ self\.query",
    "name": "query",
    "reaches": "loss, gradient, parameters",
    "fix": "the parameter query already held NaN when it was first read: initialise it",
}


def build():
    torch.manual_seed(100)
    for _ in range(3):
        dirt = [torch.full((48, 48), float("nan")) for _ in range(4)]
        del dirt
    model = Hop(48)
    with torch.no_grad():  # whatever the allocator gave: make the bad run certain, as in the report's failing runs
        model.query.view(-1)[::7] = float("nan")
    i, j, y = torch.tensor([1, 2, 3]), torch.tensor([4, 5, 6]), torch.tensor([1.0, 0.0, 1.0])

    def run(m):
        opt = torch.optim.Adam(m.parameters(), lr=1e-2)
        loss = nn.functional.binary_cross_entropy_with_logits(m(i, j), y)
        loss.backward()
        opt.step()
        return loss

    return model, run


if __name__ == "__main__":
    model, run = build()
    print("loss", float(run(model).detach()))

GROUP = "d"
CAUSE = "the parameter holds what the allocator left there; in the bad runs that includes NaN [the allocator is made dirty on purpose]"
