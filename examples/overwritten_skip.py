"""
A residual block whose in-place ReLU eats the skip connection, and a map that is added to after autograd saved it.

    python examples/overwritten_skip.py
    dispatchmon audit overwritten_skip.arrow
"""

from __future__ import annotations

import torch
from torch import nn

from dispatchmon import DispatchMonitor


class Block(nn.Module):
    """`x` goes into the branch, whose ReLU writes over it, and is added again."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.branch(x) + x


class Net(nn.Module):
    """Two blocks, and a gate that is scaled after the sigmoid saved its result."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.first, self.second = nn.Linear(4, 8), Block(), Block()
        self.gate = nn.Linear(4, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = torch.sigmoid(self.gate(x))
        gate *= 0.5
        return self.second(self.first(self.stem(x))) * gate


def main() -> None:
    """One step, which torch refuses."""
    torch.manual_seed(0)
    model = Net()
    try:
        with DispatchMonitor(model, "overwritten_skip.arrow", overwrite=True):
            model(torch.randn(16, 4)).square().mean().backward()
    except RuntimeError as error:
        print(f"torch: {str(error)[:78]}")


if __name__ == "__main__":
    main()
