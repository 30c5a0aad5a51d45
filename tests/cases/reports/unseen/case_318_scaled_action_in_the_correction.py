"""Soft actor-critic on a task with actions in -2..2: fine while actions are small, then the actor's loss is NaN."""

import torch
import torch.nn as nn

GROUP = "c"
CAUSE = "the tanh correction log(1 - a**2 + 1e-6) uses the scaled action; beyond 1 its argument is negative"
REPORT = "cpnota/autonomous-learning-library#139"


class Squashed(nn.Module):
    def __init__(self, d, scale):
        super().__init__()
        self.mean, self.scale = nn.Linear(d, 1), scale

    def forward(self, x):
        normal = torch.distributions.Normal(self.mean(x), 0.1)
        raw = normal.rsample()
        action = torch.tanh(raw) * self.scale
        logp = normal.log_prob(raw) - torch.log(1 - action.pow(2) + 1e-6)
        return action, logp.sum(-1)


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.policy = nn.Linear(3, 6), Squashed(6, 2.0)
        nn.init.constant_(self.policy.mean.weight, 0.02)
        nn.init.zeros_(self.policy.mean.bias)

    def forward(self, x):
        return self.policy(torch.relu(self.body(x)))


EXPECT = {"kind": "first-nonfinite", "what": "nan", "op": "aten.log.default", "module": "policy", "phase": "forward",
          "input_finite": True, "line": r"torch\.log\(1 - action\.pow\(2\)", "first_inf": None, "step": 2,
          "loss_finite": False, "reaches": "loss, gradients, parameters",
          "fix": "log of a negative number: use tanh(raw) before scaling in the correction"}


def build():
    torch.manual_seed(318)
    model, critic = Actor(), nn.Linear(4, 1)
    critic.requires_grad_(False)
    with torch.no_grad():
        critic.weight[0, 3] = 10.0
    states = torch.randn(6, 4, 3).abs()

    def run(m):
        opt = torch.optim.SGD(m.parameters(), lr=1e-2)
        losses = []
        for s in states:
            opt.zero_grad()
            action, logp = m(s)
            loss = (0.2 * logp - critic(torch.cat([s, action], -1)).squeeze(-1)).mean()
            loss.backward()
            opt.step()
            losses.append(loss.detach())
        return torch.stack(losses)
    return model, run


if __name__ == "__main__":
    model, run = build()
    print("losses", run(model).tolist())
