"""Q-learning: after the first synchronisation the target network changes with every step of the online network."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

GROUP = "e"
CAUSE = "`agent.target = agent.online` binds a name, nothing is copied; the optimizer steps the target as well"
REPORT = "andri27-ts/Reinforcement-Learning#14"

EXPECT = {"kind": "alias-overwritten", "raises": None, "silent": True, "beyond": True, "op": "aten.add_.Tensor",
          "module": None, "phase": "optimizer", "line": r"opt\.step\(\)", "target": "agent.target, the same module",
          "note": "one module under two names; the operators are those of a correct program"}


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.online = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        self.target = copy.deepcopy(self.online)

    def forward(self, seen, act, reward, then):
        with torch.no_grad():
            goal = reward + 0.9 * self.target(then).amax(1)
        return F.mse_loss(self.online(seen).gather(1, act[:, None]).squeeze(1), goal)


def synchronise(agent):
    agent.target = agent.online


def build():
    torch.manual_seed(219)
    model = Agent()
    batch = torch.randn(5, 3), torch.tensor([0, 1, 1, 0, 1]), torch.randn(5), torch.randn(5, 3)

    def run(m):
        opt = torch.optim.SGD(m.online.parameters(), lr=0.1)
        answers = []
        for step in range(4):
            if step == 2:
                synchronise(m)
            opt.zero_grad()
            m(*batch).backward()
            opt.step()
            with torch.no_grad():
                answers.append(m.target(batch[3]).sum().item())
        return answers
    return model, run


if __name__ == "__main__":
    model, run = build()
    answers = [round(v, 4) for v in run(model)]
    print("target's answers (1st and 2nd agree, 3rd and 4th should agree too):", answers)
