"""
A trace as CSV: every column, lists as `[8, 64]`, bytes in hexadecimal digits. Null is an empty field, an empty text `""`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.csv

from dispatchmon.reading.query import Filters, select
from dispatchmon.reading.rows import TEXT_OF
from dispatchmon.reading.trace_files import TraceFiles
from dispatchmon.schema import SCHEMA

_TEXT_OF = {**TEXT_OF, "shape": "shape::VARCHAR", "stride": "stride::VARCHAR"}
_SCHEMA = pa.schema([pa.field(f.name, pa.utf8() if f.name in _TEXT_OF else f.type) for f in SCHEMA])


def write_csv(
    trace: TraceFiles, path: Path, filters: Filters | None = None, *, on_progress: Callable[[float], None] | None = None
) -> int:
    """
    Write the filtered rows into a CSV file with a header, and return how many they are.

    Raises:
        NotATraceError: the trace is damaged.
    """
    rows = 0
    with pyarrow.csv.CSVWriter(path, _SCHEMA) as writer:
        for batch in select(trace, _TEXT_OF, filters or Filters(), on_progress=on_progress):
            writer.write_batch(batch)
            rows += batch.num_rows
    return rows
