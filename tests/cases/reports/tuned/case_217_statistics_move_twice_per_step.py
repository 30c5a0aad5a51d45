"""With activation checkpointing batch norm's running statistics move twice per step; losses and gradients are right."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

GROUP = "e"
CAUSE = "the recomputation in backward runs batch norm in train mode once more, so its buffers are updated again"
REPORT = "pytorch/pytorch#96136"


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x):
        return torch.relu(self.norm(self.lin(x)))


class Net(nn.Module):
    def __init__(self, frugal=True):
        super().__init__()
        self.block, self.out, self.frugal = Block(), nn.Linear(4, 1), frugal

    def forward(self, x):
        if self.frugal:
            x = checkpoint(self.block, x, use_reentrant=False)
        else:
            x = self.block(x)
        return self.out(x)


EXPECT = {"kind": "undeclared-write", "raises": None, "silent": True, "op": "aten.native_batch_norm.default",
          "module": "block.norm", "phase": "backward", "recompute": True, "line": r"self\.norm\(self\.lin\(x\)\)",
          "argument": "running_mean, running_var", "schema_says_write": False, "times": 2,
          "target": "buffers block.norm.running_mean, running_var; num_batches_tracked by a declared aten.add_.Tensor",
          "note": "two steps: two writes in forward (wanted) and two in the recomputation (not wanted)"}


def build(frugal=True):
    torch.manual_seed(217)
    model, x, y = Net(frugal), torch.randn(8, 4) + 2, torch.randn(8, 1)

    def run(m):
        opt = torch.optim.SGD(m.parameters(), lr=0.01)
        for _ in range(2):
            opt.zero_grad()
            (m(x) - y).pow(2).mean().backward()
            opt.step()
        return int(m.block.norm.num_batches_tracked), m.block.norm.running_mean.clone()
    return model, run


if __name__ == "__main__":
    for frugal in (False, True):
        model, run = build(frugal)
        count, mean = run(model)
        print("checkpointed" if frugal else "plain", "| batches tracked:", count, "| running mean:", mean.tolist())
