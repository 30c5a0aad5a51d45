"""Graph convolution: the inverse degree of isolated nodes is inf and is cleared by masked assignment before use."""
import torch
import torch.nn as nn

EXPECT = {"correct": True}


class Convolve(nn.Module):
    def __init__(self, a, b, inplace):
        super().__init__()
        self.lin, self.inplace = nn.Linear(a, b), inplace

    def forward(self, x, edge):
        source, target = edge
        degree = torch.zeros(len(x)).index_add(0, target, torch.ones(len(target)))
        scale = degree.pow(-0.5)
        if self.inplace:
            scale[scale == float("inf")] = 0
        else:
            scale = scale.masked_fill(torch.isinf(scale), 0.0)
        message = self.lin(x)[source] * (scale[source] * scale[target])[:, None]
        return torch.zeros(len(x), message.shape[1]).index_add(0, target, message)


class Graph(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Convolve(4, 6, True), Convolve(6, 2, False)

    def forward(self, x, edge):
        return self.second(torch.relu(self.first(x, edge)), edge)


def build():
    torch.manual_seed(343)
    model = Graph()
    x, y = torch.randn(6, 4), torch.randn(6, 2)
    edge = torch.tensor([[0, 1, 2, 3, 1], [1, 0, 1, 2, 3]])       # nodes 4 and 5 are isolated

    def run(m):
        opt = torch.optim.Adam(m.parameters(), lr=1e-2)
        losses = []
        for _ in range(3):
            opt.zero_grad()
            loss = (m(x, edge) - y).pow(2).mean()
            loss.backward()
            opt.step()
            losses.append(loss.detach())
        return torch.stack(losses)
    return model, run


if __name__ == "__main__":
    model, run = build()
    assert run(model).isfinite().all()
    assert all(p.isfinite().all() for p in model.parameters())
