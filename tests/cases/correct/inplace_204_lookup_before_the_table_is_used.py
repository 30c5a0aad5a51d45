"""Repaired 204: the lookup, which renormalises rows of the table, comes before the product with the whole table."""

import torch
from torch import nn

EXPECT = {"correct": True}


class Link(nn.Module):
    def __init__(self, entities=5, dim=4):
        super().__init__()
        self.entity = nn.Embedding(entities, dim, max_norm=1.0)
        self.relation = nn.Parameter(torch.randn(3, dim))

    def forward(self, head):
        picked = self.entity(head) @ self.relation.T
        every = self.entity.weight @ self.relation.T
        return torch.sigmoid(every.unsqueeze(0) + picked.unsqueeze(1))


def build():
    torch.manual_seed(204)
    model, head = Link(), torch.tensor([1, 2])

    def run(m):
        m.zero_grad()
        m(head).mean().backward()
        return m.relation.grad.clone(), head
    return model, run


if __name__ == "__main__":
    model, run = build()
    table = model.entity.weight.detach().clone()
    got, head = run(model)
    table[head] = table[head] / table[head].norm(dim=1, keepdim=True).clamp(min=1.0)
    relation = model.relation.detach().clone().requires_grad_()
    scores = (table @ relation.T).unsqueeze(0) + (table[head] @ relation.T).unsqueeze(1)
    (want,) = torch.autograd.grad(torch.sigmoid(scores).mean(), relation)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-4)
    print("right")
