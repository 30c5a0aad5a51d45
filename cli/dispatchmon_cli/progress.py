"""
A progress bar for long scans: on stderr, only on a terminal, only if it takes a while.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress

_PATIENCE = 0.5  # seconds


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[float], None] | None]:
    """
    Yield a function to call with the part that is done, from 0 to 1, or None where nobody watches.

    The bar leaves no trace on the screen.
    """
    if not sys.stderr.isatty():
        yield None
        return
    bar = Progress(console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=1.0)
    begun, shown = time.monotonic(), False

    def update(done: float) -> None:
        nonlocal shown
        if not shown and time.monotonic() - begun > _PATIENCE:
            shown = True
            bar.start()
        bar.update(task, completed=done)

    try:
        yield update
    finally:
        if shown:
            bar.stop()
