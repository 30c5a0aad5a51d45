"""
What all answers have in common: a document for programs, and a table and sentences for people.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from dispatchmon.words.harmless import printable
from dispatchmon.words.tables import Cells, as_html


class Answer(ABC):
    """
    An answer to a question about a trace.

    `print(answer)` shows what the command prints into a pipe; a notebook shows the same as a table.
    """

    @property
    @abstractmethod
    def items(self) -> str:
        """The key of the document under which the answer's items are, one for each line of ndjson and CSV."""

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """The keys of an item, in order."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The command's JSON document, word for word; docs/commands.md describes its keys."""

    @abstractmethod
    def table(self) -> Cells:
        """The items for people."""

    def opening(self) -> list[str]:
        """What is said above the table, line by line."""
        return []

    @abstractmethod
    def closing(self) -> list[str]:
        """What is said below the table, line by line."""

    @abstractmethod
    def gist(self) -> str:
        """What was counted or found, in a few words."""

    def text_table(self) -> Cells:
        """The table within a text; an answer whose sentences say everything has none there."""
        return self.table()

    def __str__(self) -> str:
        table, closing = list(self.text_table().lines()), self.closing()
        between = [""] if table and closing else []
        return "\n".join((*map(printable, self.opening()), *table, *between, *map(printable, closing)))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {printable(self.gist())}>"

    def _repr_html_(self) -> str:
        return as_html(self.table(), self.opening(), self.closing())
