"""
What the line that ends a recording says of NaN and Inf: what `dispatchmon nonfinite` would.

Nearly every run meets some: masks are made of -Inf, memory that nobody has written holds anything. Only the search can tell
these from harm, so it is asked; it looks at the trace that was just closed, and only if a NaN or Inf is in there at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dispatchmon.words.closing_line import NOTHING, seen_first

MOST_BYTES = 1 << 24  # of a trace that the program waits for, a second or two
HARMLESS = "no NaN or Inf that did harm"
UNJUDGED = "NaN or Inf that was not judged here"


def said_of_nonfinite(path: Path, n_bytes: int, first: Mapping[str, Any] | None, ops: bool) -> tuple[str, bool]:
    """
    In a few words what there is to know of NaN and Inf, and whether to look closer.

    Args:
        path: a trace that is closed.
        n_bytes: its size.
        first: the row in which a NaN or Inf was seen first, if one was.
        ops: whether operators were recorded: of modules and parameters alone nothing is followed.
    """
    if first is None:
        return NOTHING, False
    if not ops:
        return seen_first(first), True
    if n_bytes > MOST_BYTES:
        return UNJUDGED, True
    try:
        from dispatchmon.analysis.nonfinite import find_nonfinite  # loaded when it is needed, and only then
        from dispatchmon.reading.trace_files import open_files

        answer = find_nonfinite(open_files(path))
    except Exception:  # it must not be the training that ends with this
        return UNJUDGED, True
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
    return HARMLESS, False
