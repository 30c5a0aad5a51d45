"""
The rows themselves, filtered, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dispatchmon.reading.query import Filters, query, quoted
from dispatchmon.reading.trace_files import TraceFiles
from dispatchmon.schema import COLUMN_NAMES

TEXT_OF = {"cells": "lower(hex(cells))"}  # what has no form of its own in JSON and CSV


def rows(
    trace: TraceFiles,
    columns: Sequence[str] = COLUMN_NAMES,
    filters: Filters | None = None,
    limit: int | None = None,
    *,
    on_progress: Callable[[float], None] | None = None,
) -> Iterator[dict[str, Any]]:
    """
    Yield rows as dicts, in the order of the trace: rank by rank, event by event.

    Args:
        trace: the trace.
        columns: which columns; `cells` comes in hexadecimal digits.
        filters: which rows (default all).
        limit: at most so many (default all). Reading stops there.
        on_progress: called while reading, with the part that is done, from 0 to 1.

    Raises:
        NotATraceError: the trace is damaged.
        DispatchmonError: the condition of the filters fails on a row.
    """
    said = ", ".join(f"{TEXT_OF.get(name, quoted(name))} AS {quoted(name)}" for name in columns)
    sql = f"SELECT {said} FROM trace" + ("" if limit is None else f" LIMIT {int(limit)}")
    return query(trace, sql, columns, filters, on_progress=on_progress)
