"""What every test leaves as it found it."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


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
