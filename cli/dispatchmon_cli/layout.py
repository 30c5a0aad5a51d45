"""
How a table is made to fit a terminal.
"""

from __future__ import annotations

from collections.abc import Sequence

from dispatchmon.words.tables import GAP, Cells

_NARROWEST = 16  # what a name may be cut to


def fit(cells: Cells, widths: Sequence[int], room: int) -> dict[int, int]:
    """Return the columns that are shown, each with its width, so that they take no more than `room` if that can be."""
    shown = dict(enumerate(widths))
    for spare in (*cells.spare, None):
        too_wide = sum(shown.values()) + GAP * (len(shown) - 1) - room
        if too_wide <= sum(max(0, shown[c] - _NARROWEST) for c in cells.cut if c in shown) or spare is None:
            break
        del shown[spare]
    for _ in range(too_wide):
        widest = max((c for c in cells.cut if c in shown), key=lambda c: shown[c])
        if shown[widest] <= _NARROWEST:
            break
        shown[widest] -= 1
    return shown


def cut_middle(text: str, width: int) -> str:
    """Shorten a name to `width` characters by its middle, since both ends of a module's name tell it apart."""
    if len(text) <= width:
        return text
    tail = width // 2
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"
