"""
The one way to ask a trace a question: SQL over its rows, as a stream, by DuckDB.

DuckDB reads the record batches as they come, so memory does not grow with the trace, and its expressions are complete
and closed: within `query` they can reach the rows and nothing else, no file, no network, no Python variable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa

from dispatchmon.errors import DispatchmonError
from dispatchmon.trace import Trace

_ROWS_AT_ONCE = 4096
_CLOSED: dict[str, Any] = {
    "enable_external_access": "false",
    "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false",
    "python_enable_replacements": "false",
}


@dataclass(frozen=True)
class Filters:
    """
    Which rows a question is about; the default is all of them.

    `steps` is a half-open range, either end of which may be None. `modules` and `ops` are globs (`*`, `?`, `[…]`,
    `[!…]`) that match whole names; one of several is enough. A row outside every module matches no module glob.
    """

    steps: tuple[int | None, int | None] = (None, None)
    modules: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    phases: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the filters look at."""
        used = {"step": any(end is not None for end in self.steps), "module": self.modules, "op": self.ops}
        used |= {"phase": self.phases, "rank": self.ranks}
        return tuple(name for name, on in used.items() if on)

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

        start, stop = self.steps
        any_of("step >=", [] if start is None else [start])
        any_of("step <", [] if stop is None else [stop])
        any_of("module GLOB", self.modules)
        any_of("op GLOB", self.ops)
        any_of("phase =", self.phases)
        any_of("rank =", self.ranks)
        return " AND ".join(parts) or "true", values


def query(
    trace: Trace,
    sql: str,
    columns: Iterable[str],
    filters: Filters | None = None,
    *,
    values: Mapping[str, Any] | None = None,
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
        on_progress: called with the part of the trace that is read, from 0 to 1.

    Raises:
        NotATraceError: a batch is damaged.
        DispatchmonError: the statement is wrong; the message says where.
    """
    filters = filters or Filters()
    condition, filter_values = filters.condition()
    names = list(dict.fromkeys([*columns, *filters.columns])) or ["event"]
    stopped_by: list[BaseException] = []
    source = trace.scan(names, ranks=filters.ranks or None, on_progress=on_progress)

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            yield from source
        except BaseException as error:  # DuckDB would turn it into a text
            stopped_by.append(error)
            raise

    with duckdb.connect(":memory:", config=_CLOSED) as connection:
        connection.register("every_row", pa.RecordBatchReader.from_batches(source.schema, batches()))
        connection.execute("SET lock_configuration = true")
        try:
            answer = connection.execute(
                f"WITH trace AS NOT MATERIALIZED (SELECT * FROM every_row WHERE {condition}) {sql}",
                {**filter_values, **(values or {})},
            )
            keys = [column[0] for column in answer.description]
            while rows := answer.fetchmany(_ROWS_AT_ONCE):
                for row in rows:
                    yield dict(zip(keys, row, strict=True))
        except (duckdb.Error, RuntimeError) as error:
            if stopped_by:
                raise stopped_by[0] from None
            if "interrupted" in str(error).lower():
                raise KeyboardInterrupt from None
            raise DispatchmonError(" ".join(str(error).split())) from error
