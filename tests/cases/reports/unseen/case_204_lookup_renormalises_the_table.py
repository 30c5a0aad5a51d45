"""Scores against all entities are computed first, then single entities are looked up in an embedding with max_norm."""

import torch
from torch import nn

GROUP = "a"
CAUSE = "an embedding with max_norm rescales rows of its weight in forward; the product with it needs the old ones"
REPORT = "pytorch/pytorch#26596"


class Link(nn.Module):
    def __init__(self, entities=5, dim=4):
        super().__init__()
        self.entity = nn.Embedding(entities, dim, max_norm=1.0)
        self.relation = nn.Parameter(torch.randn(3, dim))

    def forward(self, head):
        every = self.entity.weight @ self.relation.T
        picked = self.entity(head) @ self.relation.T
        return torch.sigmoid(every.unsqueeze(0) + picked.unsqueeze(1))


EXPECT = {"kind": "inplace-after-save", "raises": r"modified by an inplace operation",
          "op": "aten.embedding_renorm_.default", "module": "entity", "phase": "forward",
          "line": r"picked = self\.entity\(head\)", "victim_op": "aten.mm.default", "victim_module": "",
          "victim_line": r"every = self\.entity\.weight @", "target": "entity.weight"}


def build():
    torch.manual_seed(204)
    model, head = Link(), torch.tensor([1, 2])

    def run(m):
        opt = torch.optim.Adam(m.parameters(), lr=1e-2)
        opt.zero_grad()
        m(head).mean().backward()
        opt.step()
    return model, run


if __name__ == "__main__":
    model, run = build()
    try:
        run(model)
        print("no error")
    except RuntimeError as e:
        print("raised:", str(e)[:160])
