"""
The one way to ask a trace a question: SQL over its rows, as a stream, by DuckDB.

DuckDB reads the record batches as they come, so memory does not grow with the trace, and its expressions are complete
and closed: within `query` they can reach the rows and nothing else, no file, no network, no Python variable.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa

from dispatchmon.errors import DispatchmonError
from dispatchmon.reading.contents import Range, Test, Within
from dispatchmon.reading.database import connected
from dispatchmon.reading.trace_files import TraceFiles
from dispatchmon.schema import COLUMN_NAMES, SCHEMA

_ROWS_AT_ONCE = 4096
_BATCH_ROWS = 1 << 15


@dataclass(frozen=True)
class Filters:
    """
    Which rows a question is about; the default is all of them.

    `steps` and `events` are half-open ranges, either end of which may be None. `modules` and `ops` are globs (`*`, `?`,
    `[…]`, `[!…]`) that match whole names; one of several is enough. A row outside every module matches no module glob.
    `where` is one SQL expression over the columns of a trace, as DuckDB reads it, already `checked`.
    """

    steps: Range = (None, None)
    modules: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    phases: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    events: Range = (None, None)
    where: str | None = None

    @property
    def ranges(self) -> dict[str, Range]:
        """The ranges by column; a scan skips the batches that lie outside."""
        ranges = {"step": self.steps, "event": self.events}
        return {name: ends for name, ends in ranges.items() if ends != (None, None)}

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the filters look at."""
        used = {"module": self.modules, "op": self.ops, "phase": self.phases, "rank": self.ranks}
        words = set(re.findall(r"\w+", (self.where or "").lower()))
        return tuple(n for n in COLUMN_NAMES if used.get(n) or n in self.ranges or n in words)

    def condition(self) -> tuple[str, dict[str, Any]]:
        """Return the filters as an SQL condition, and the values of its parameters."""
        parts: list[str] = []
        values: dict[str, Any] = {}

        def any_of(test: str, wanted: Iterable[Any]) -> None:
            tests = []
            for value in wanted:
                values[f"filter_{len(values)}"] = value
                tests.append(f"{test} $filter_{len(values) - 1}")
            if tests:
                parts.append(f"({' OR '.join(tests)})")

        for column, (start, stop) in self.ranges.items():
            any_of(f"{column} >=", [] if start is None else [start])
            any_of(f"{column} <", [] if stop is None else [stop])
        any_of("module GLOB", self.modules)
        any_of("op GLOB", self.ops)
        any_of("phase =", self.phases)
        any_of("rank =", self.ranks)
        if self.where is not None:
            parts.append(f"({self.where}\n)")  # a comment at its end stays one
        return " AND ".join(parts) or "true", values


def quoted(column: str) -> str:
    """Return the name of a column as SQL has it: `offset` is a word of its own there."""
    return f'"{column}"'


def checked(where: str) -> str:
    """
    Return a condition that a user has typed, once DuckDB has read it as one expression over the columns of a trace.

    Raises:
        DispatchmonError: it is none; the message says why.
    """
    with connected() as connection:
        try:
            connection.from_arrow(SCHEMA.empty_table()).filter(where)
        except duckdb.Error as error:
            problem = " ".join(str(error).partition("\n\nLINE")[0].split())
            raise DispatchmonError(f"the condition {where!r} is not understood: {problem}") from error
    return where


def query(
    trace: TraceFiles,
    sql: str,
    columns: Iterable[str],
    filters: Filters | None = None,
    *,
    values: Mapping[str, Any] | None = None,
    within: Within | None = None,
    test: Test | None = None,
    on_progress: Callable[[float], None] | None = None,
) -> Iterator[dict[str, Any]]:
    """
    Run one SELECT over the table `trace`, which holds the filtered rows in order, and yield the answer row by row.

    Args:
        trace: the trace.
        sql: the statement; it may name `trace` only once, since the rows come by only once.
        columns: the columns that the statement looks at. Only these are read from the file.
        filters: which rows are asked about.
        values: values of the statement's named parameters (`$name`); for whatever a user has typed.
        within, test: batches without such rows need not be read, as in `TraceFiles.scan`; the statement leaves out the other
            rows of the others.
        on_progress: called with the part of the trace that is read, from 0 to 1.

    Raises:
        NotATraceError: a batch is damaged.
        DispatchmonError: the statement is wrong; the message says where.
    """
    asked = _asked(trace, sql, columns, filters or Filters(), values or {}, on_progress, within or {}, test)
    with asked as (connection, text, given):
        answer = connection.execute(text, given)
        keys = [column[0] for column in answer.description]
        while rows := answer.fetchmany(_ROWS_AT_ONCE):
            for row in rows:
                yield dict(zip(keys, row, strict=True))


def select(
    trace: TraceFiles,
    expressions: Mapping[str, str],
    filters: Filters,
    columns: Sequence[str] = COLUMN_NAMES,
    *,
    on_progress: Callable[[float], None] | None = None,
) -> Iterator[pa.RecordBatch]:
    """
    Yield the filtered rows as record batches, with these columns of a trace.

    Args:
        trace: the trace.
        expressions: SQL that takes the place of single columns, by their names.
        filters: which rows are asked about.
        columns: the columns (default all).
        on_progress: as in `query`.

    Raises:
        NotATraceError, DispatchmonError: as in `query`.
    """
    if not expressions and filters == Filters():
        yield from trace.scan(columns, on_progress=on_progress)
        return
    said = ", ".join(f"{expressions.get(name, quoted(name))} AS {quoted(name)}" for name in columns)
    sql = f"SELECT {said} FROM trace"
    with _asked(trace, sql, columns, filters, {}, on_progress) as (connection, text, given):
        answer = connection.sql(text, params=given)
        reader = (
            answer.to_arrow_reader if hasattr(answer, "to_arrow_reader") else answer.fetch_arrow_reader
        )  # before 1.4
        for batch in reader(_BATCH_ROWS):
            arrays = [
                array if name in expressions else array.cast(SCHEMA.field(name).type)
                for name, array in zip(columns, batch.columns, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, names=list(columns))


@contextmanager
def _asked(
    trace: TraceFiles,
    sql: str,
    columns: Iterable[str],
    filters: Filters,
    values: Mapping[str, Any],
    on_progress: Callable[[float], None] | None,
    within: Within | None = None,
    test: Test | None = None,
) -> Iterator[tuple[Any, str, dict[str, Any]]]:
    """Yield a connection, the whole statement, and its parameters; translate what goes wrong while it answers."""
    condition, filter_values = filters.condition()
    names = list(dict.fromkeys([*columns, *filters.columns])) or ["event"]
    stopped_by: list[BaseException] = []
    within = {**(within or {}), **filters.ranges}
    source = trace.scan(names, ranks=filters.ranks or None, within=within, test=test, on_progress=on_progress)

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            yield from source
        except BaseException as error:  # DuckDB would turn it into a text
            stopped_by.append(error)
            raise

    with connected() as connection:
        connection.register("every_row", pa.RecordBatchReader.from_batches(source.schema, batches()))
        try:
            text = f"WITH trace AS NOT MATERIALIZED (SELECT * FROM every_row WHERE {condition}) {sql}"
            yield connection, text, {**filter_values, **values}
        except (duckdb.Error, pa.ArrowException, RuntimeError, OSError) as error:
            if stopped_by:
                raise stopped_by[0] from None
            if "interrupted" in str(error).lower():
                raise KeyboardInterrupt from None
            raise DispatchmonError(" ".join(str(error).split())) from error
