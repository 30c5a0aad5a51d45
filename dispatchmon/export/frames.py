"""
The rows of a trace in memory: as a table of Arrow, a frame of pandas or of Polars.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import pyarrow as pa

from dispatchmon.errors import DispatchmonError
from dispatchmon.reading.query import Filters, select
from dispatchmon.reading.trace_files import TraceFiles
from dispatchmon.schema import COLUMN_NAMES, SCHEMA


def arrow_table(trace: TraceFiles, columns: Sequence[str] = COLUMN_NAMES, filters: Filters | None = None) -> pa.Table:
    """
    The filtered rows, with these columns in the types of the format.

    Raises:
        NotATraceError: the trace is damaged.
    """
    schema = pa.schema([SCHEMA.field(name) for name in columns])
    return pa.Table.from_batches(select(trace, {}, filters or Filters(), columns), schema)


def pandas_frame(table: pa.Table) -> Any:
    """
    The same as a pandas DataFrame. Whole numbers and booleans have pandas' types that can be missing (`Int64`), so that a
    null makes no fractions of them.

    Raises:
        DispatchmonError: pandas is not installed.
    """
    pandas = _package("pandas")
    nullable = {
        pa.bool_(): pandas.BooleanDtype(),
        pa.int32(): pandas.Int32Dtype(),
        pa.int64(): pandas.Int64Dtype(),
        pa.uint64(): pandas.UInt64Dtype(),
    }
    return table.to_pandas(types_mapper=nullable.get)


def polars_frame(table: pa.Table) -> Any:
    """
    The same as a Polars DataFrame.

    Raises:
        DispatchmonError: Polars is not installed.
    """
    return _package("polars").from_arrow(table)


def _package(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise DispatchmonError(f"to_{name} needs {name}: pip install {name}") from error
