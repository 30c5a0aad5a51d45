"""
The one DuckDB of this process: empty, and closed to everything but what a question registers in it.

To start one takes as long as a small question, and a trace of many ranks asks many.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import duckdb

_CLOSED: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false",
    "python_enable_replacements": "false",
}


@contextmanager
def connected() -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a connection of its own, which sees nothing of what others have registered."""
    with _database(os.getpid()).cursor() as connection:
        yield connection


@lru_cache(maxsize=1)
def _database(process: int) -> duckdb.DuckDBPyConnection:
    """The database of a process: the threads of another one did not come along with a fork."""
    database = duckdb.connect(":memory:", config=_CLOSED)
    database.execute("SET lock_configuration = true")
    return database
