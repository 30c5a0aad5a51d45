"""A GradScaler looks for its scale by letting gradients overflow."""

from __future__ import annotations

import gc

import torch


class Scaler:
    """Whether one lives, looked up once: then a gradient that overflows is no accident."""

    def __init__(self) -> None:
        self.known: bool | None = None

    def at_work(self) -> bool:
        """Whether an enabled one lives."""
        if self.known is None:
            kind = torch.amp.GradScaler
            self.known = any(issubclass(type(each), kind) and each.is_enabled() for each in gc.get_objects())
        return self.known
