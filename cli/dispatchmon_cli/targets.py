"""
Where a command writes to: a new file or folder that appears when it is whole, and never in the place of anything else.

What is no regular file, a named pipe or a device, is written through: it stays what it is. A link stays a link. A folder
gives way only to a folder, and only if an export of ours wrote all that is in it.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from dispatchmon import DispatchmonError


@contextmanager
def file_target(target: Path, *, force: bool, inputs: Collection[Path]) -> Iterator[Path]:
    """
    Yield the path of a new file; what is in it at the end goes to the target.

    Raises:
        DispatchmonError: the target exists and `force` is not given, or it is one of the `inputs` or a folder.
    """
    _require_no_input(target, inputs)
    if target.is_dir():
        raise DispatchmonError(f"{target} is a folder; name a file to write to")
    if is_through(target):
        with TemporaryDirectory(prefix="dispatchmon-") as folder:
            place = Path(folder, "whole")
            yield place
            _pour(place, target)
        return
    with _beside(target, force) as place:
        yield place
        real = target.resolve()
        os.chmod(place, real.stat().st_mode & 0o7777 if real.exists() else 0o666 & ~_umask())
        os.replace(place, real)


@contextmanager
def folder_target(
    target: Path, *, force: bool, inputs: Collection[Path], ours: Callable[[Path], bool]
) -> Iterator[Path]:
    """
    Yield the path of a folder to make; when it is whole it stands at the target.

    Args:
        target: where it goes to.
        force: whether a folder that is there gives way.
        inputs: what is read, which is never written to.
        ours: whether a file was written by an export.

    Raises:
        DispatchmonError: the target exists and `force` is not given, or it is anything else than a folder of exports.
    """
    _require_no_input(target, inputs)
    if target.exists() and not target.is_dir():
        raise DispatchmonError(f"{target} is a file; name a folder to write to")
    with _beside(target, force) as place:
        if target.is_dir() and not _all_ours(target, ours):
            raise DispatchmonError(f"{target} holds what export has not written; name another path to write to")
        yield place
        real = target.resolve()
        if real.is_dir():
            if not _all_ours(real, ours):
                raise DispatchmonError(f"{target} now holds what export has not written; name another path to write to")
            os.replace(real, place.with_name(f"{place.name}.old"))
        os.replace(place, real)


def is_through(target: Path) -> bool:
    """Whether something stands there that is written through: a pipe, a device, this program's own output."""
    return target.exists() and not target.is_dir() and (not target.is_file() or is_stdout(target))


def is_stdout(target: Path) -> bool:
    """Whether a path leads to where standard output goes: `/dev/stdout`."""
    try:
        return os.path.samestat(target.stat(), os.fstat(sys.stdout.fileno()))
    except (OSError, ValueError):  # it does not exist, or the output is no file
        return False


def _pour(place: Path, target: Path) -> None:
    with place.open("rb") as whole:
        if is_stdout(target):
            sys.stdout.flush()
            shutil.copyfileobj(whole, sys.stdout.buffer)
            sys.stdout.buffer.flush()
        else:
            with open(target, "wb", buffering=0) as out:
                shutil.copyfileobj(whole, out)


def _require_no_input(target: Path, inputs: Collection[Path]) -> None:
    if target.exists() and any(path.exists() and path.samefile(target) for path in inputs):
        raise DispatchmonError(f"{target} is the trace itself; name another path to write to")


@contextmanager
def _beside(target: Path, force: bool) -> Iterator[Path]:
    """Yield a path in a new hidden folder beside the target, which is gone in the end."""
    if target.exists() and not force:
        raise DispatchmonError(f"{target} exists already; --force overwrites it")
    real = target.resolve()  # a link stays a link
    if not real.parent.is_dir():
        shown = real if target.is_symlink() else target
        raise DispatchmonError(f"there is no folder {shown.parent} to write {shown.name} into")
    with TemporaryDirectory(prefix=f".{real.name[:100]}.", dir=real.parent, ignore_cleanup_errors=True) as folder:
        yield Path(folder, real.name)


def _all_ours(folder: Path, ours: Callable[[Path], bool]) -> bool:
    """Whether a folder holds files that are ours, and else only folders, of which none is a link."""
    inside = list(folder.rglob("*"))
    return not any(path.is_symlink() for path in inside) and all(path.is_dir() or ours(path) for path in inside)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
