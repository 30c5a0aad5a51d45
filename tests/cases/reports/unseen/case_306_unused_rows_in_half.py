"""Whole model in float16 with plain Adam: after one good step, every token that was not in the batch is NaN."""

import torch
import torch.nn as nn

GROUP = "c"
CAUSE = "eps 1e-8 rounds to 0 in float16: for rows with zero gradient the update is 0 / (sqrt(0) + 0)"
REPORT = "afiaka87/glide-finetune#5"


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(12, 6), nn.Linear(6, 3)

    def forward(self, ids):
        return self.head(torch.tanh(self.embed(ids)))


EXPECT = {"kind": "first-nonfinite", "what": "nan", "op": "aten.addcdiv_.default", "module": None, "phase": "optimizer",
          "input_finite": True, "line": r"opt\.step\(\)", "first_inf": None, "step": 0,
          "reaches": "parameter embed.weight", "loss_finite": True,
          "note": "x / 0 = inf appears beside 0 / 0 where a squared gradient underflows to 0",
          "fix": "the denominator is 0 (eps 1e-8 underflows in float16): eps=1e-4 or float32 master weights"}


def build():
    torch.manual_seed(306)
    model = Tagger().half()
    batches = [(torch.tensor([1, 4, 7, 2]), torch.tensor([0, 1, 2, 1])),
               (torch.tensor([4, 9, 1, 3]), torch.tensor([2, 0, 1, 1]))]

    def run(m):
        opt = torch.optim.Adam(m.parameters(), lr=1e-3)
        losses = []
        for ids, y in batches:
            opt.zero_grad()
            loss = nn.functional.cross_entropy(m(ids).float(), y)
            loss.backward()
            opt.step()
            losses.append(loss.detach())
        return torch.stack(losses)
    return model, run


if __name__ == "__main__":
    model, run = build()
    print("losses", run(model).tolist(), "NaN rows", model.embed.weight.isnan().any(1).tolist())
