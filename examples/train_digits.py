"""
Train a small convolutional network on scikit-learn's digits under dispatchmon, then look at one in-place ReLU.

    python examples/train_digits.py                 trains, and writes digits.arrow
    python examples/train_digits.py --no-monitor    the same training without the monitor
"""

from __future__ import annotations

import argparse
from collections import OrderedDict
from contextlib import nullcontext

import pyarrow as pa
import pyarrow.compute as pc
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from dispatchmon import DispatchMonitor

Statistics = tuple[float, float, float]


class Block(nn.Module):
    """Two convolutions beside a residual branch; both ReLUs write over their input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.relu2 = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return relu(x + branch(x)), of the shape of x."""
        branch = self.relu1(self.norm1(self.conv1(x)))
        branch = self.norm2(self.conv2(branch))
        branch += x
        return self.relu2(branch)


def make_model(channels: int = 24) -> nn.Module:
    """Return a network from (N, 1, 8, 8) images to (N, 10) logits."""
    stem = nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
    )
    head = nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(channels * 4 * 4, 10))
    return nn.Sequential(OrderedDict(stem=stem, block=Block(channels), head=head))


def load_data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the digits as x_train, y_train (1437 of them), x_test, y_test (360)."""
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    y = torch.tensor(digits.target)
    order = torch.randperm(len(x))
    return x[order[:1437]], y[order[:1437]], x[order[1437:]], y[order[1437:]]


def train(model: nn.Module, x: Tensor, y: Tensor, epochs: int, batch: int = 128) -> None:
    """Train the model by gradient descent with momentum."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(batch):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
            loss.backward()
            optimizer.step()


def seen_by_hook(module: nn.Module, seen: list[Statistics]) -> None:
    """Let a plain forward hook read the input of the module's next call, as many monitors do."""

    def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen.append((inputs[0].min().item(), inputs[0].max().item(), inputs[0].mean().item()))
        handle.remove()

    handle = module.register_forward_hook(hook)


def seen_by_trace(path: str, module: str, role: str) -> Statistics:
    """Read what went into ("input") or came out of ("output") the module's first in-place ReLU."""
    rows = pa.ipc.open_file(path).read_all()
    relu = (pc.field("op") == "aten.relu_.default") & (pc.field("module") == module) & (pc.field("role") == role)
    first = rows.filter(relu).slice(0, 1).to_pylist()[0]
    return first["min"], first["max"], first["mean"]


def line(label: str, statistics: Statistics) -> str:
    """A line of the table; a mean that is rounding noise below 0 is 0.0000, not -0.0000."""
    return f"{label:32}" + "".join(f"{round(x, 4) + 0.0:10.4f}" for x in statistics)


def main() -> None:
    """Train, say how well, and compare what a hook sees with what the trace holds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    parser.add_argument("--trace", default="digits.arrow", help="where the trace goes (default: %(default)s)")
    parser.add_argument("--no-monitor", action="store_true", help="train without the monitor")
    parser.add_argument("--epochs", type=int, default=5, help="passes over the training set (default: %(default)s)")
    options = parser.parse_args()

    torch.manual_seed(0)
    x_train, y_train, x_test, y_test = load_data()
    model = make_model()
    hooked: list[Statistics] = []
    seen_by_hook(model.get_submodule("block.relu1"), hooked)

    with nullcontext() if options.no_monitor else DispatchMonitor(model, options.trace, overwrite=True):
        train(model, x_train, y_train, options.epochs)

    model.eval()
    with torch.no_grad():
        accuracy = (model(x_test).argmax(1) == y_test).float().mean().item()
    print(f"test accuracy {accuracy:.1%}")

    if not options.no_monitor:
        print("\nThe first call of `block.relu1`, an nn.ReLU(inplace=True):\n")
        print(f"{'':32}{'min':>10}{'max':>10}{'mean':>10}")
        print(line("input, says a forward hook", hooked[0]))
        print(line("input, says the trace", seen_by_trace(options.trace, "block.relu1", "input")))
        print(line("output, says the trace", seen_by_trace(options.trace, "block.relu1", "output")))
        print("\nThe hook ran after the ReLU had written over its input, so it reports the output twice.")


if __name__ == "__main__":
    main()
