"""
`dispatchmon show`: the rows themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import click

from dispatchmon.reading.contents import Range
from dispatchmon.reading.query import checked
from dispatchmon.reading.rows import rows
from dispatchmon.schema import COLUMN_NAMES
from dispatchmon.words.figures import count, counted, number
from dispatchmon.words.names import module_name, shape
from dispatchmon.words.tables import Cells
from dispatchmon_cli.options import Request, read_range, reads_trace
from dispatchmon_cli.progress import progress_bar

_FOR_PEOPLE = 40  # rows of a table, unless asked otherwise
_COLUMNS = (
    *("event", "rank", "kind", "step", "phase", "module", "op", "role", "arg", "dtype", "shape"),
    *("min", "max", "mean", "nan", "inf", "source"),
)
_TITLES = (
    *("event", "rank", "step", "phase", "module", "op", "value", "dtype", "shape"),
    *("min", "max", "mean", "NaN", "Inf", "source"),
)
_LEFT = ("phase", "module", "op", "value", "dtype", "shape", "source")
_CUT = ("module", "op", "source")
_SPARE = ("mean", "source", "dtype", "phase", "step", "module")


@click.command()
@reads_trace()
@click.option(
    "--event", metavar="A:B", default=":", callback=read_range, help="Only events from A up to, not including, B."
)
@click.option("--where", metavar="SQL", help='Only rows that meet an SQL condition over the columns, as "nan > 0".')
@click.option(
    "--limit", type=click.IntRange(min=0), help="At most so many rows; 0 is all. [default: 40 in tables, else all]"
)
def command(request: Request, event: Range, where: str | None, limit: int | None) -> None:
    """The rows themselves, filtered."""
    filters = replace(request.filters, events=event, where=None if where is None else checked(where))
    people = request.format in ("table", "markdown")
    if limit is None:
        limit = _FOR_PEOPLE if people else 0
    with request.open_report() as report:
        trace = request.open_trace()
        with progress_bar("reading") as on_progress:
            seen = _Seen(limit)
            # one row more than is shown tells whether there are more
            found = rows(
                trace, _COLUMNS if people else COLUMN_NAMES, filters, limit + 1 if limit else None,
                on_progress=on_progress)  # fmt: skip
            report.write_stream(
                head={"format": 1, "warnings": list(trace.warnings)},
                key="rows",
                records=seen.first_of(found),
                columns=COLUMN_NAMES,
                cells=lambda some: _cells(some, ranks=len(trace.ranks) > 1),
                closing=seen.closing,
            )


class _Seen:
    """Counts the rows that go by."""

    def __init__(self, limit: int) -> None:
        self.limit, self.rows, self.more = limit, 0, False

    def first_of(self, found: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for row in found:
            if self.limit and self.rows == self.limit:
                self.more = True
                return
            self.rows += 1
            yield row

    def closing(self) -> Sequence[str]:
        if self.more:
            return [f"The first {counted(self.rows, 'row')}; --limit 0 shows all."]
        return [f"{counted(self.rows, 'row')}."] if self.rows else ["No row matches."]


def _cells(some: Sequence[Mapping[str, Any]], ranks: bool) -> Cells:
    titles = [title for title in _TITLES if ranks or title != "rank"]
    said = [_said(row) for row in some]
    return Cells(
        titles,
        [[row[title] for title in titles] for row in said],
        alarming=frozenset(
            (r, titles.index(title))
            for r, row in enumerate(some)
            for title, seen in (("NaN", row["nan"]), ("Inf", row["inf"]))
            if seen
        ),
        texts=frozenset(map(titles.index, _LEFT)),
        cut=frozenset(map(titles.index, _CUT)),
        spare=tuple(map(titles.index, _SPARE)),
    )


def _said(row: Mapping[str, Any]) -> dict[str, str]:
    """Say a row, by title."""
    value = " ".join(filter(None, ("" if row["kind"] == "op" else row["kind"], row["role"], row["arg"])))
    numbers = {name: "-" if row[name] is None else number(row[name]) for name in ("min", "max", "mean")}
    counts = {title: "-" if row[title.lower()] is None else count(row[title.lower()]) for title in ("NaN", "Inf")}
    return {
        "event": str(row["event"]),
        "rank": str(row["rank"]),
        "step": str(row["step"]),
        "phase": row["phase"],
        "module": module_name(row["module"]),
        "op": row["op"],
        "value": value or "(no tensor)",
        "dtype": row["dtype"] or "",
        "shape": shape(row["shape"]),
        **numbers,
        **counts,
        "source": row["source"] or "",
    }
