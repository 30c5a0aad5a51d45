"""
Record the gold trace of the current format: two steps of a small network with an in-place ReLU, and a division by zero.

    python tests/gold/make_gold.py

The file is committed once per minor version of the format and then left alone: later versions must go on reading it.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from dispatchmon import DispatchMonitor
from dispatchmon.schema import FORMAT_VERSION

PATH = Path(__file__).resolve().parent / f"trace-{FORMAT_VERSION}.arrow"


def main() -> None:
    """Write the file."""
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True), nn.Linear(2, 1))
    with torch.no_grad():
        for parameter, values in zip(
            model.parameters(), ([[1, -2], [0.5, 1]], [0, 0.25], [[1, -1]], [0.5]), strict=True
        ):
            parameter.copy_(torch.tensor(values))
    model[2].register_module("again", model[1])  # a second name of the same module; nothing calls it
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with DispatchMonitor(model, PATH, overwrite=True):
        for _ in range(2):
            optimizer.zero_grad()
            loss = model(torch.tensor([[1.0, 2.0]])).sum()
            loss.backward()
            optimizer.step()
        torch.tensor([1.0, -1.0, 0.0]).div(0)


if __name__ == "__main__":
    main()
