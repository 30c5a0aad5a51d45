"""
Where an answer goes, and in which format.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from io import StringIO
from itertools import islice
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, Any, cast

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dispatchmon.analysis.answer import Answer
from dispatchmon.words.harmless import csv_line, json_text, printable
from dispatchmon.words.tables import GAP, Cells
from dispatchmon_cli.layout import cut_middle, fit
from dispatchmon_cli.targets import file_target

FORMATS = ("table", "json", "ndjson", "csv", "markdown")
_IN_MEMORY = 1 << 24  # bytes of a document that waits for its end
_AT_ONCE = 1000  # rows of a long answer that make one table


@dataclass(frozen=True)
class Report:
    """An open report: `write` puts what was found into it, in the format that was asked for."""

    format: str
    out: IO[str]
    color: bool

    def answer(self, answer: Answer) -> None:
        """Write the answer of an analysis."""
        document = answer.to_dict()
        self.write(
            document=document,
            records=document[answer.items],
            columns=answer.columns,
            cells=answer.table() if self.format == "markdown" else answer.text_table(),
            opening=answer.opening(),
            closing=answer.closing(),
        )

    def write(
        self,
        *,
        document: Mapping[str, Any],
        records: Iterable[Mapping[str, Any]],
        columns: Sequence[str],
        cells: Cells,
        opening: Sequence[str] = (),
        closing: Sequence[str] = (),
    ) -> None:
        """
        Write a short answer.

        Args:
            document: the whole of it, for JSON.
            records: its items, one per line of ndjson and csv, each with the keys `columns`.
            columns: the keys of a record, in order.
            cells: the same items for people, for tables and markdown.
            opening: what to say above a table, one paragraph each.
            closing: what to say below a table, one paragraph each.
        """
        if self.format == "json":
            print(json_text(document, indent=2), file=self.out)
        elif self.format == "ndjson":
            for record in records:
                print(json_text(record), file=self.out)
        elif self.format == "csv":
            print(csv_line(columns), file=self.out)
            for record in records:
                print(csv_line([record[key] for key in columns]), file=self.out)
        elif self.format == "markdown":
            self._say(opening)
            self._write_markdown(cells)
        else:
            self._say(opening)
            self._write_table(cells)
            if cells.rows and closing:
                print(file=self.out)
            self._say(closing)

    def _say(self, paragraphs: Sequence[str]) -> None:
        for paragraph in paragraphs:
            print(printable(paragraph), file=self.out)

    def write_stream(
        self,
        *,
        head: Mapping[str, Any],
        key: str,
        records: Iterable[Mapping[str, Any]],
        columns: Sequence[str],
        cells: Callable[[Sequence[Mapping[str, Any]]], Cells],
        closing: Callable[[], Sequence[str]],
    ) -> None:
        """
        Write an answer that may be too long for memory, piece by piece.

        Args:
            head: what the JSON says before the items.
            key: the JSON's key of the items.
            records, columns: as in `write`.
            cells: makes the table of some records.
            closing: what to say below the last table, asked for when all records were taken.
        """
        if self.format == "json":
            print("{", *(f'  "{name}": {json_text(value)},' for name, value in head.items()), sep="\n", file=self.out)
            print(f'  "{key}": [', end="", file=self.out)
            for i, record in enumerate(records):
                print("," if i else "", f"\n    {json_text(record)}", sep="", end="", file=self.out)
            print("\n  ]\n}", file=self.out)
        elif self.format in ("ndjson", "csv"):
            self.write(document={}, records=records, columns=columns, cells=Cells((), ()))
        else:
            self._write_tables(records, cells, closing)

    def _write_tables(
        self,
        records: Iterable[Mapping[str, Any]],
        cells: Callable[[Sequence[Mapping[str, Any]]], Cells],
        closing: Callable[[], Sequence[str]],
    ) -> None:
        remaining, left_out, first = iter(records), dict[str, None](), True
        while piece := list(islice(remaining, _AT_ONCE)):
            table = cells(piece)
            if self.format == "markdown":
                self._write_markdown(table, header=first)
            else:
                left_out |= dict.fromkeys(self._write_table(table))
            first = False
        if self.format == "markdown":
            return
        said = list(closing())
        if left_out:
            said.append(f"Left out to fit the terminal: {', '.join(left_out)}.")
        if said and not first:
            print(file=self.out)
        for paragraph in said:
            print(printable(paragraph), file=self.out)

    def _write_markdown(self, cells: Cells, header: bool = True) -> None:
        rules = ["---:" if cells.is_number(i) else "---" for i in range(len(cells.titles))]
        for row in (*((cells.titles, rules) if header else ()), *cells.rows):
            print("| " + " | ".join(_markdown(cell) for cell in row) + " |", file=self.out)

    def _write_table(self, cells: Cells) -> list[str]:
        """Write a table, and return the titles of the columns that did not fit."""
        if not cells.rows:
            return []
        if not self.out.isatty():  # into a pipe or a file nothing is cut, and there may be much of it
            for line in cells.lines():
                print(line, file=self.out)
            return []
        rows = [[printable(cell) for cell in row] for row in cells.rows]
        widths = [max(map(len, column)) for column in zip(cells.titles, *rows, strict=True)]
        # rich writes into a buffer, for it would answer a closed pipe by itself.
        buffer = StringIO()
        console = Console(file=buffer, force_terminal=True, no_color=None if self.color else True, highlight=False)
        shown = fit(cells, widths, console.width)
        table = Table(
            box=None, pad_edge=False, padding=(0, GAP, 0, 0), show_header=any(cells.titles), header_style="bold"
        )
        for c in shown:
            table.add_column(cells.titles[c], justify="right" if cells.is_number(c) else "left", overflow="fold")
        for r, row in enumerate(rows):
            texts = ((c, cut_middle(row[c], shown[c]) if c in cells.cut else row[c]) for c in shown)
            table.add_row(*(Text(text, "red" if (r, c) in cells.alarming else "") for c, text in texts))
        console.print(table)
        self.out.write("".join(line.rstrip(" ") + "\n" for line in buffer.getvalue().splitlines()))
        return [title for c, title in enumerate(cells.titles) if c not in shown]


def open_report(
    format_: str, target: Path | None, *, force: bool, color: bool, inputs: Iterable[Path]
) -> AbstractContextManager[Report]:
    """
    Open a report on stdout or, with a `target`, in a file.

    The file appears when the report is whole: if anything fails before, there is none, and an older one is as it was.

    Raises:
        DispatchmonError: the file exists and `force` is not given, or it is one of the `inputs`.
    """
    return _on_stdout(format_, color) if target is None else _in_file(format_, target, force, set(inputs))


@contextmanager
def _on_stdout(format_: str, color: bool) -> Iterator[Report]:
    if format_ != "json" or not _is_regular(sys.stdout):
        yield Report(format_, sys.stdout, color)
        return
    with SpooledTemporaryFile(_IN_MEMORY, "w+", encoding="utf-8") as whole:  # half a document is none
        yield Report(format_, cast(IO[str], whole), color)
        whole.seek(0)
        shutil.copyfileobj(whole, sys.stdout)


@contextmanager
def _in_file(format_: str, target: Path, force: bool, inputs: Collection[Path]) -> Iterator[Report]:
    with file_target(target, force=force, inputs=inputs) as place, place.open("w", encoding="utf-8") as out:
        yield Report(format_, out, color=False)


def _is_regular(file: IO[str]) -> bool:
    try:
        return stat.S_ISREG(os.fstat(file.fileno()).st_mode)
    except (OSError, ValueError):  # it is no file
        return False


def _markdown(cell: str) -> str:
    return printable(cell).replace("|", "\\|").replace("<", "\\<")
