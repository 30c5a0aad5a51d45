"""A network trains well for ten steps, and then its loss is NaN. `dispatchmon nonfinite sudden_nan.arrow` says why."""

import torch
from torch import Tensor, nn

from dispatchmon import DispatchMonitor


class Pull(nn.Module):
    """Distance to the nearest anchor, and 0 for points that are on one."""

    def __init__(self) -> None:
        super().__init__()
        self.anchors = nn.Parameter(torch.randn(8, 2))

    def forward(self, points: Tensor) -> Tensor:
        """Return one distance per point."""
        squared = (points[:, None] - self.anchors).pow(2).sum(-1).amin(1)
        return torch.where(squared > 0, squared.sqrt(), squared)  # so that 0 has no infinite slope?


class Model(nn.Module):
    """Moves points, and measures how far they are from the anchors."""

    def __init__(self) -> None:
        super().__init__()
        self.move = nn.Linear(2, 2)
        self.pull = Pull()

    def forward(self, points: Tensor) -> Tensor:
        """Return the mean distance."""
        mean: Tensor = self.pull(self.move(points)).mean()
        return mean


def main() -> None:
    """Train, with one batch in which a point comes to lie on an anchor."""
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with DispatchMonitor(model, "sudden_nan.arrow", overwrite=True):
        for step in range(12):
            points = torch.randn(16, 2)
            if step == 10:
                with torch.no_grad():
                    model.pull.anchors[3] = model.move(points)[5]
            optimizer.zero_grad()
            loss = model(points)
            loss.backward()
            optimizer.step()
            if step in (0, 9, 10, 11):
                print(f"step {step:2}  loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
