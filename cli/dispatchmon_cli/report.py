"""
Where an answer goes, and in which format.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dispatchmon import DispatchmonError
from dispatchmon_cli.wording import cut_middle, printable

FORMATS = ("table", "json", "ndjson", "csv", "markdown")
_NARROWEST_NAME = 16
_GAP = 2  # spaces between columns


@dataclass(frozen=True)
class Cells:
    """
    A table for people: a column of names, then numbers (or texts, if not `numeric`), all said already.

    Titles may all be empty. `alarming` cells, as (row, column), are painted red.
    """

    titles: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: bool = True
    alarming: frozenset[tuple[int, int]] = frozenset()


@dataclass(frozen=True)
class Report:
    """An open report: `write` puts an answer into it, in the format that was asked for."""

    format: str
    out: IO[str]
    color: bool

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
        Write an answer.

        Args:
            document: the whole answer, for JSON.
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

    def _write_markdown(self, cells: Cells) -> None:
        for row in (
            cells.titles,
            ["---", *["---:" if cells.numeric else "---"] * (len(cells.titles) - 1)],
            *cells.rows,
        ):
            print("| " + " | ".join(printable(cell).replace("|", "\\|") for cell in row) + " |", file=self.out)

    def _write_table(self, cells: Cells) -> None:
        if not cells.rows:
            return
        terminal = self.out.isatty()
        # Into a pipe or a file nothing is cut. rich writes into a buffer, for it would answer a closed pipe by itself.
        buffer = StringIO()
        console = Console(
            file=buffer,
            force_terminal=terminal,
            no_color=None if self.color else True,
            width=None if terminal else 100_000,
            highlight=False,
        )
        rows = [[printable(cell) for cell in row] for row in cells.rows]
        widths = [max(map(len, column)) for column in zip(cells.titles, *rows, strict=True)]
        room = max(_NARROWEST_NAME, console.width - sum(widths[1:]) - _GAP * len(widths[1:]))
        table = Table(
            box=None, pad_edge=False, padding=(0, _GAP, 0, 0), show_header=any(cells.titles), header_style="bold"
        )
        for i, title in enumerate(cells.titles):
            table.add_column(title, justify="right" if i and cells.numeric else "left", overflow="fold")
        for r, row in enumerate(rows):
            row = [cut_middle(row[0], room), *row[1:]]
            table.add_row(*(Text(t, "red" if (r, c) in cells.alarming else "") for c, t in enumerate(row)))
        console.print(table)
        self.out.write("".join(line.rstrip(" ") + "\n" for line in buffer.getvalue().splitlines()))


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
    return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, indent=indent)


def _finite(value: Any) -> Any:
    """JSON has no NaN and no Inf: they become the strings that a trace uses for them."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _csv(value: Any) -> str:
    """Null is an empty field and an empty text is `""`, so that a reader can tell the model from outside it."""
    if value is None:
        return ""
    if isinstance(value, list | tuple | dict):
        value = _json(value)
    text = str(value)
    return '"' + text.replace('"', '""') + '"' if not text or any(c in text for c in '",\r\n') else text
