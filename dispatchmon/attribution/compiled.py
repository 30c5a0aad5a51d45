"""Code that `torch.compile` made: its fused operators reach no mode, and what it writes is not seen."""

from __future__ import annotations

import threading
from collections.abc import Callable

from torch import nn

from dispatchmon.torch_internals import frames_compiled, never_compile, watch_compiled


class CompiledCode:
    """Counts what runs compiled, in one thread; `unseen_writes` is called when something may have been written unseen."""

    def __init__(self) -> None:
        self.unseen_writes: Callable[[], None] = lambda: None
        self.thread = threading.get_ident()
        self.calls = 0  # of compiled modules
        self.entries = 0  # into code of torch.compile outside of such calls
        self.depth: int | None = None  # of the outermost call of a compiled module, while it runs
        self.idle = False  # this step is not recorded
        self.frames = 0  # that were compiled before
        self.end: Callable[[], None] = lambda: None

    def open(self) -> None:
        """Start to count."""
        self.thread = threading.get_ident()
        self.frames = frames_compiled()
        self.end = watch_compiled(self.runs)

    def close(self) -> None:
        """Stop."""
        self.end()
        self.end = lambda: None
        if not self.calls:  # each frame ran when it was made
            self.entries += max(0, frames_compiled() - self.frames)

    def runs(self, again: bool) -> None:
        """Code that torch.compile made is about to run, again or for the first time."""
        if threading.get_ident() == self.thread:
            self.unseen_writes()
            if again and self.depth is None and not self.idle:
                self.entries += 1

    def module_left(self) -> None:
        """The call of a compiled module is over."""
        self.calls += 1
        self.unseen_writes()


def is_compiled(module: nn.Module) -> bool:
    """Whether a module is what `torch.compile` made of one."""
    return module._compiled_call_impl is not None or "_orig_mod" in module._modules


never_compile(CompiledCode.runs)
