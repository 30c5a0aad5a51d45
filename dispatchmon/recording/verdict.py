"""
What the line that ends a recording says of NaN and Inf: what `dispatchmon nonfinite` would.

Nearly every run meets some: masks are made of -Inf, memory that nobody has written holds anything. Only the search can tell
these from harm, so it is asked; it looks at the trace that was just closed, and only if a NaN or Inf is in there at all, or
memory that was allocated and not filled, which may have been read as ordinary numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dispatchmon.words.closing_line import NOTHING, seen_first

if TYPE_CHECKING:
    from dispatchmon.analysis.nonfinite import NonFinite

MOST_BYTES = 1 << 24  # of a trace that the program waits for, a second or two
HARMLESS = "no NaN or Inf that did harm"
UNJUDGED = "NaN or Inf that was not judged here"


def judged(path: Path, n_bytes: int) -> NonFinite | None:
    """What `dispatchmon nonfinite` finds in a trace that is closed; None if that would take long, or fails."""
    if n_bytes > MOST_BYTES:
        return None
    try:
        from dispatchmon.analysis.nonfinite import find_nonfinite  # loaded when it is needed, and only then
        from dispatchmon.reading.trace_files import open_files

        return find_nonfinite(open_files(path))
    except Exception:  # it must not be the training that ends with this
        return None


def said_of_nonfinite(first: Mapping[str, Any] | None, ops: bool, answer: NonFinite | None) -> tuple[str, bool]:
    """
    In a few words what there is to know of NaN and Inf, and whether to look closer.

    Args:
        first: the row in which a NaN or Inf was seen first, if one was.
        ops: whether operators were recorded: of modules and parameters alone nothing is followed.
        answer: what was found, see `judged`; None too if there was nothing to search for.
    """
    if answer is None or not ops:
        if first is None:
            return NOTHING, False
        return (UNJUDGED, True) if ops else (seen_first(first), False)
    if answer.first is not None:
        origin = answer.first
        where = f" in {origin.module}" if origin.module else ""
        return f"first {'NaN' if origin.what == 'nan' else 'Inf'} in {origin.op}{where}, step {origin.step}", True
    if answer.vanished:
        zeros = answer.vanished[0]
        where = f" in {zeros.module}" if zeros.module else ""
        return f"overflow in {zeros.op}{where} that became zeros, step {zeros.step}", True
    if answer.found:
        read = next(each for each in answer.uninitialised if each.matters)
        return f"unwritten memory of {read.op} was read in {read.reader.op}, step {read.reader.step}", True
    return (NOTHING if first is None else HARMLESS), False


def first_origins(path: Path, n_bytes: int) -> dict[str, int] | None:
    """The first step with an origin of a NaN, and of an Inf, in what a flight recorder holds; None if that is not known."""
    answer = judged(path, n_bytes)
    if answer is None:
        return None
    return {what: step for what in ("inf", "nan") if (step := _first(answer, what)) is not None}


def _first(answer: NonFinite, what: str) -> int | None:
    return min((origin.step for origin in answer.origins if origin.what == what), default=None)
