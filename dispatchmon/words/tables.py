"""
Tables of what was said already: as plain lines, and as HTML.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from dispatchmon.words.figures import count
from dispatchmon.words.harmless import printable

GAP = 2  # spaces between columns
_MOST_ROWS = 20  # of a table in HTML
_MOST_SENTENCES = 60


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

    def lines(self) -> Iterator[str]:
        """Yield the table line by line, as wide as it is; nothing if it has no row."""
        if not self.rows:
            return
        rows = [[printable(cell) for cell in row] for row in self.rows]
        widths = [max(map(len, column)) for column in zip(self.titles, *rows, strict=True)]
        align = [str.rjust if self.is_number(c) else str.ljust for c in range(len(widths))]
        for row in (*([self.titles] if any(self.titles) else []), *rows):
            line = (" " * GAP).join(put(text, width) for put, text, width in zip(align, row, widths, strict=True))
            yield line.rstrip(" ")


def as_html(cells: Cells, opening: Sequence[str] = (), closing: Sequence[str] = ()) -> str:
    """A table and the sentences above and below it as HTML that needs nothing else; of much, the first of it."""
    return "".join(("<div>", _sentences(opening), _table(cells), _sentences(closing), "</div>"))


def _table(cells: Cells) -> str:
    if not cells.rows:
        return ""
    sides = ["right" if cells.is_number(c) else "left" for c in range(len(cells.titles))]
    align = [f' style="text-align: {side}; white-space: pre-wrap"' for side in sides]  # a tree keeps its indents
    html = ["<table>"]
    if any(cells.titles):
        titles = "".join(f"<th{style}>{_text(title)}</th>" for style, title in zip(align, cells.titles, strict=True))
        html.append(f"<thead><tr>{titles}</tr></thead>")
    html.append("<tbody>")
    for row in cells.rows[:_MOST_ROWS]:
        fields = "".join(f"<td{style}>{_text(cell)}</td>" for style, cell in zip(align, row, strict=True))
        html += [f"<tr>{fields}</tr>"]
    if (more := len(cells.rows) - _MOST_ROWS) > 0:
        html.append(f'<tr><td colspan="{len(cells.titles)}">… and {count(more)} more</td></tr>')
    html.append("</tbody></table>")
    return "".join(html)


def _sentences(said: Sequence[str]) -> str:
    shown = [_text(sentence) for sentence in said[:_MOST_SENTENCES]]
    if (more := len(said) - _MOST_SENTENCES) > 0:
        shown.append(f"… and {count(more)} more")
    return f'<div style="white-space: pre-wrap">{"<br>".join(shown)}</div>' if shown else ""


def _text(said: str) -> str:
    """What a trace says, harmless for a page."""
    return escape(printable(said))
