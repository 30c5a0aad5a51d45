"""
Tables for people, and how they are made to fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

GAP = 2  # spaces between columns
_NARROWEST = 16  # what a name may be cut to


@dataclass(frozen=True)
class Cells:
    """
    A table for people: a column of names, then numbers (or texts, if not `numeric`), all said already.

    Titles may all be empty. `alarming` cells, as (row, column), are painted red. `texts` are columns that stand to the
    left though the others are numbers; `cut` are those that are cut in the middle where the table is too wide, and
    `spare` those that are then left out, the first one first.
    """

    titles: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: bool = True
    alarming: frozenset[tuple[int, int]] = frozenset()
    texts: frozenset[int] = frozenset({0})
    cut: frozenset[int] = frozenset({0})
    spare: tuple[int, ...] = ()

    def is_number(self, column: int) -> bool:
        """Whether a column stands to the right."""
        return self.numeric and column not in self.texts


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
