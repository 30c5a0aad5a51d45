"""
A trace as CSV: every column, lists as `[8, 64]`, bytes in hexadecimal digits. Null is an empty field, an empty text `""`.

Texts are as a spreadsheet may have them: what begins as a formula has an apostrophe before it.
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
from dispatchmon.words.harmless import cell

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
            writer.write_batch(_harmless(batch))
            rows += batch.num_rows
    return rows


def _harmless(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([_cells(c) if c.type == pa.utf8() else c for c in batch.columns], batch.schema.names)


def _cells(column: pa.Array) -> pa.Array:
    """The texts of a column as cells, each distinct one looked at once."""
    distinct = column.dictionary_encode()
    texts = distinct.dictionary.to_pylist()
    if (said := [cell(text) for text in texts]) == texts:
        return column
    return pa.DictionaryArray.from_arrays(distinct.indices, pa.array(said, pa.utf8())).dictionary_decode()
