"""Generation with temperature 0.0: multinomial refuses the probabilities."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Voice(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(7, 6), nn.Linear(6, 7)

    def forward(self, ids):
        return self.head(torch.tanh(self.embed(ids)).mean(0))


def speak(m, ids, temperature, n=3):
    for _ in range(n):
        scores = m(ids)
        scores = scores.masked_fill(torch.arange(7) == 0, float("-inf"))
        p = F.softmax(scores / temperature, dim=-1)
        ids = torch.cat([ids, torch.multinomial(p, 1)])
    return ids


EXPECT = {
    "kind": "first-nonfinite",
    "what": "inf, then nan",
    "op": "aten._softmax.default",
    "module": None,
    "phase": "forward",
    "input_finite": False,
    "line": r"F\.softmax\(scores / temperature",
    "first_inf": {"op": "aten.div", "line": r"scores / temperature", "module": None},
    "not": "the masked_fill with -inf, which is deliberate and harmless",
    "raises": r"probability tensor contains either `inf`, `nan`",
    "fix": "temperature is 0",
}


def build():
    torch.manual_seed(104)
    model = Voice().eval()

    def run(m):
        with torch.no_grad():
            speak(m, torch.tensor([1, 2]), 0.8)
            return speak(m, torch.tensor([1, 2]), 0.0)

    return model, run


if __name__ == "__main__":
    model, run = build()
    try:
        run(model)
    except RuntimeError as e:
        print("raised:", e)

GROUP = "c"
CAUSE = "logits / 0 is +-inf, and the softmax of a row with +inf is NaN"
