"""log(0) as a mask: action masks by mask.log(), log prior with impossible classes, entropy of the masked policy."""
import torch
import torch.nn as nn

EXPECT = {"correct": True}


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 5)
        self.register_buffer("prior", torch.tensor([0.5, 0.25, 0.0, 0.25, 0.0]).log())

    def forward(self, x, allowed):
        logits = self.head(torch.tanh(self.body(x)))
        return logits + allowed.float().log(), logits + self.prior


def build():
    torch.manual_seed(349)
    model = Policy()
    x, reward = torch.randn(6, 4), torch.randn(6)
    allowed = torch.rand(6, 5) > 0.4
    allowed[:, 0] = True

    def run(m):
        opt = torch.optim.Adam(m.parameters(), lr=1e-2)
        losses = []
        for _ in range(3):
            masked, posterior = m(x, allowed)
            policy = torch.distributions.Categorical(logits=masked)
            action = policy.sample()
            gain = (policy.log_prob(action) * reward).mean() + 0.01 * torch.special.entr(
                torch.where(allowed, masked.softmax(-1), 1.0)).sum(-1).mean()
            loss = -gain - posterior.logsumexp(-1).mean() * 0.01
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.detach())
        return torch.stack(losses)
    return model, run


if __name__ == "__main__":
    model, run = build()
    assert run(model).isfinite().all()
    assert all(p.isfinite().all() for p in model.parameters())
