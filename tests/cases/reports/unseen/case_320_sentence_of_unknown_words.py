"""Semantic search with averaged word vectors: one sentence of the corpus always ranks first, with score NaN."""

import torch
import torch.nn as nn

GROUP = "c"
CAUSE = "a sentence without any known word has the zero vector, and dividing it by its norm is 0 / 0"
REPORT = "huggingface/sentence-transformers#589"


class Average(nn.Module):
    def __init__(self, words, d):
        super().__init__()
        self.words = nn.EmbeddingBag(words, d, mode="mean", padding_idx=0)

    def forward(self, ids):
        return self.words(ids)


class Sentences(nn.Module):
    def __init__(self):
        super().__init__()
        self.pool = Average(10, 5)

    def forward(self, ids):
        return self.pool(ids)


def cosine(a, b):
    a = a / a.norm(dim=1, keepdim=True)
    b = b / b.norm(dim=1, keepdim=True)
    return a @ b.T


EXPECT = {"kind": "first-nonfinite", "what": "nan", "op": "aten.div.Tensor", "module": None, "phase": "forward",
          "input_finite": True, "line": r"b = b / b\.norm", "first_inf": None, "reaches": "the result",
          "fix": "0 / 0: a zero vector has norm 0, use F.normalize (it has an eps) or clamp the norm"}


def build():
    torch.manual_seed(320)
    model = Sentences().eval()
    corpus = torch.tensor([[3, 5, 1, 0], [7, 2, 0, 0], [0, 0, 0, 0], [4, 4, 9, 0]])     # 0: not in the vocabulary
    query = torch.tensor([[5, 3, 0, 0]])

    def run(m):
        with torch.no_grad():
            found = m(corpus)
            return cosine(m(query), found).topk(3, 1)
    return model, run


if __name__ == "__main__":
    model, run = build()
    print([t.tolist() for t in run(model)])
