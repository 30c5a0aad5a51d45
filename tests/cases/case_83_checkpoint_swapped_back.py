"""The averaged weights are swapped in, the checkpoint is collected, the live weights are swapped back: the checkpoint has the live ones."""
GROUP = "e"
CAUSE = "state_dict is a shallow copy: swapping back in place before the file is written rewrites the collected checkpoint"

import copy

import torch
import torch.nn as nn


@torch.no_grad()
def swap(live, mean):
    for p, q in zip(live.parameters(), mean.parameters()):
        tmp = p.clone()
        p.copy_(q)
        q.copy_(tmp)


EXPECT = {"kind": "alias-overwritten", "raises": None, "silent": True, "op": "aten.copy_.default", "module": None,
          "line": r"p\.copy_\(q\)", "target": "ckpt['weight'] (storage of the live model)", "victim_op": "aten.copy_.default (load_state_dict)",
          "created_by": {"op": "aten.detach.default", "line": r"ckpt = m\.state_dict\(\)"}}


def build():
    torch.manual_seed(83)
    model, x = nn.Linear(3, 2), torch.randn(5, 3)

    def run(m):
        mean, fresh = copy.deepcopy(m), nn.Linear(3, 2)
        opt = torch.optim.SGD(m.parameters(), lr=0.5)
        for step in range(3):
            opt.zero_grad()
            m(x).pow(2).mean().backward()
            opt.step()
        swap(m, mean)
        ckpt = m.state_dict()
        swap(m, mean)
        fresh.load_state_dict(ckpt)
        return (fresh.weight - mean.weight).abs().max().item(), (fresh.weight - m.weight).abs().max().item()
    return model, run


if __name__ == "__main__":
    model, run = build()
    print("distance of the reloaded weights to the average (should be 0) and to the live ones:", run(model))
