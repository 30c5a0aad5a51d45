"""
One monitor writes a file, and no other: in this process, in another one of this machine, or, where the file system
passes locks on, of another.

The lock is the operating system's, on the open file. It is gone with the process that holds it, however that ends.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dispatchmon.errors import TraceInUseError

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows: who opens a file twice there is refused anyway
    fcntl = None


@contextmanager
def in_nobodys_use(path: Path) -> Iterator[int]:
    """
    Hold a file that is about to be replaced, if there is one; yield its permissions, or those that a new one may have.

    Raises:
        TraceInUseError: a monitor is writing it.
    """
    try:
        number = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        yield 0o666
        return
    try:
        if not lock(number):
            raise TraceInUseError(f"{path} is being written by another monitor: give each monitor a path of its own")
        yield os.fstat(number).st_mode & 0o7777
    finally:
        unlock(number)
        os.close(number)


def lock(number: int) -> bool:
    """Lock an open file, as far as its file system can; False if somebody else has."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks
    return True


def unlock(number: int) -> None:
    """Give the lock back, also where a process that was forked meanwhile has the file open as well."""
    if fcntl is not None:
        try:
            fcntl.flock(number, fcntl.LOCK_UN)
        except OSError:
            return
