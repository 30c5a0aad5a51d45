"""What every test leaves as it found it."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

# Inductor's cache on disk does not tell instruction sets apart (torch 2.13): code that was made for 16 lanes and is
# compiled again for 8, because ATEN_CPU_CAPABILITY says so, leaves half of every result unwritten.
os.environ.setdefault(
    "TORCHINDUCTOR_CACHE_DIR",
    str(Path(tempfile.gettempdir()) / f"dispatchmon-inductor-{os.environ.get('ATEN_CPU_CAPABILITY', 'default')}"),
)


def has_process_group() -> bool:
    """Whether torch, if it is loaded at all, is in a process group."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized()


@pytest.fixture(autouse=True)
def no_process_group_is_left() -> Iterator[None]:
    """Some adopted programs join a process group and never leave it; the next test of this process makes its own."""
    before = has_process_group()
    yield
    if has_process_group() and not before:
        sys.modules["torch"].distributed.destroy_process_group()
