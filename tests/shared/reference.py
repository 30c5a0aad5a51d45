"""Expected statistics, from an independent source."""

from __future__ import annotations

import torch


def reference(tensor: torch.Tensor) -> dict[str, float]:
    """The statistics of a float tensor without NaN and Inf, by torch in float64."""
    t = tensor.detach().double()
    return {
        "min": t.min().item(), "max": t.max().item(), "mean": t.mean().item(), "std": t.std(correction=0).item(),
        "norm": t.norm().item(), "nan": 0, "inf": 0, "posinf": 0, "zero": int((t == 0).sum())}  # fmt: skip
