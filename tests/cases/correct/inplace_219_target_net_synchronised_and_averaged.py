"""Repaired 219: the target network is loaded from the online one, then follows it by an in-place running average."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {"correct": True}


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.online = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, seen, act, reward, then):
        with torch.no_grad():
            goal = self.target(then).amax(1).mul_(0.9).add_(reward)
        return F.mse_loss(self.online(seen).gather(1, act[:, None]).squeeze(1), goal)


@torch.no_grad()
def average(agent, rate=0.1):
    for t, p in zip(agent.target.parameters(), agent.online.parameters()):
        t.lerp_(p, rate)


def build():
    torch.manual_seed(219)
    model = Agent()
    batch = torch.randn(5, 3), torch.tensor([0, 1, 1, 0, 1]), torch.randn(5), torch.randn(5, 3)

    def run(m):
        opt = torch.optim.SGD(m.online.parameters(), lr=0.1)
        track = []
        for step in range(4):
            opt.zero_grad()
            m(*batch).backward()
            opt.step()
            if step == 1:
                m.target.load_state_dict(m.online.state_dict())
            elif step > 1:
                average(m)
            track.append((m.online[0].bias.detach().clone(), m.target[0].bias.detach().clone()))
        return track
    return model, run


if __name__ == "__main__":
    model, run = build()
    start = model.target[0].bias.clone()
    track = run(model)
    want = start
    for step, (online, target) in enumerate(track):
        want = online if step == 1 else want + 0.1 * (online - want) if step > 1 else want
        torch.testing.assert_close(target, want)
    assert not torch.equal(track[3][0], track[3][1])
    print("right")
