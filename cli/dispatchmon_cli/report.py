"""
Where an answer goes, and in which format.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from io import StringIO
from itertools import islice
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dispatchmon import DispatchmonError
from dispatchmon.analysis.answer import Answer
from dispatchmon.words.documents import plain
from dispatchmon.words.names import printable
from dispatchmon.words.tables import GAP, Cells
from dispatchmon_cli.layout import cut_middle, fit

FORMATS = ("table", "json", "ndjson", "csv", "markdown")
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
            print(_json(document, indent=2), file=self.out)
        elif self.format == "ndjson":
            for record in records:
                print(_json(record), file=self.out)
        elif self.format == "csv":
            print(",".join(map(_csv, columns)), file=self.out)
            for record in records:
                print(",".join(_csv(record[key]) for key in columns), file=self.out)
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
            print("{", *(f'  "{name}": {_json(value)},' for name, value in head.items()), sep="\n", file=self.out)
            print(f'  "{key}": [', end="", file=self.out)
            for i, record in enumerate(records):
                print("," if i else "", f"\n    {_json(record)}", sep="", end="", file=self.out)
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
            print("| " + " | ".join(printable(cell).replace("|", "\\|") for cell in row) + " |", file=self.out)

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
    yield Report(format_, sys.stdout, color)


@contextmanager
def _in_file(format_: str, target: Path, force: bool, inputs: set[Path]) -> Iterator[Report]:
    if target.is_dir():
        raise DispatchmonError(f"{target} is a folder; name a file to write to")
    if target.exists() and not target.is_file():  # /dev/null, a named pipe
        with open(target, "w", encoding="utf-8") as out:
            yield Report(format_, out, color=False)
        return
    if target.exists():
        if any(path.exists() and path.samefile(target) for path in inputs):
            raise DispatchmonError(f"{target} is the trace itself; name another file to write to")
        if not force:
            raise DispatchmonError(f"{target} exists already; --force overwrites it")
    if not target.parent.is_dir():
        raise DispatchmonError(f"there is no folder {target.parent} to write {target.name} into")
    real = target.resolve()  # a link stays a link
    with NamedTemporaryFile(
        "w", encoding="utf-8", dir=real.parent, prefix=f".{real.name}.", suffix=".part", delete=False
    ) as out:
        try:
            yield Report(format_, out, color=False)
            out.flush()
            os.chmod(out.name, real.stat().st_mode & 0o7777 if real.exists() else 0o666 & ~_umask())
            os.replace(out.name, real)
        except BaseException:
            os.unlink(out.name)
            raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _json(value: Any, indent: int | None = None) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent)
    except ValueError:
        return json.dumps(plain(value), ensure_ascii=False, allow_nan=False, indent=indent)


def _csv(value: Any) -> str:
    """Null is an empty field and an empty text is `""`, so that a reader can tell the model from outside it."""
    if value is None:
        return ""
    if isinstance(value, list | tuple | dict):
        value = _json(value)
    text = str(value)
    return '"' + text.replace('"', '""') + '"' if not text or any(c in text for c in '",\r\n') else text
