"""
A trace as Parquet: one file, or a folder of files by rank and step, from which any engine takes over.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from dispatchmon.analysis.query import Filters, select
from dispatchmon.schema import CLOSING_KEY, METADATA_KEY, SCHEMA
from dispatchmon.trace import Trace

PARTITIONS = ("rank", "step")
COMPRESSION = "zstd"
_OPEN_FILES = 16  # a step is over before the next one begins; each open file holds rows in memory


def write_parquet(
    trace: Trace, path: Path, filters: Filters | None = None, *, on_progress: Callable[[float], None] | None = None
) -> int:
    """
    Write the filtered rows into one Parquet file, and return how many they are.

    The file's metadata has those of the first rank, and its closing statement, under the keys of a trace.

    Raises:
        NotATraceError: the trace is damaged.
    """
    rows = 0
    with pq.ParquetWriter(path, _schema(trace), compression=COMPRESSION) as writer:
        for batch in select(trace, {}, filters or Filters(), on_progress=on_progress):
            writer.write_batch(batch)
            rows += batch.num_rows
    return rows


def write_partitioned(
    trace: Trace,
    folder: Path,
    by: Sequence[str],
    filters: Filters | None = None,
    *,
    on_progress: Callable[[float], None] | None = None,
) -> int:
    """
    Write the filtered rows into a new folder, as `rank=0/step=12/part-0.parquet`, and return how many they are.

    Args:
        trace: the trace.
        folder: the folder; it is made.
        by: one or both of `PARTITIONS`, outermost first.
        filters: which rows (default all).
        on_progress: called with the part that is done, from 0 to 1.

    Raises:
        ValueError: there is no such partition.
        NotATraceError: the trace is damaged.
    """
    if unknown := [name for name in by if name not in PARTITIONS]:
        raise ValueError(f"a trace is partitioned by {' and '.join(PARTITIONS)}, not by {unknown[0]!r}")
    rows, schema = 0, _schema(trace)

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal rows
        for batch in select(trace, {}, filters or Filters(), on_progress=on_progress):
            rows += batch.num_rows
            yield batch.cast(schema)

    folder.mkdir()
    ds.write_dataset(
        batches(),
        folder,
        schema=schema,
        format="parquet",
        file_options=ds.ParquetFileFormat().make_write_options(compression=COMPRESSION),
        partitioning=ds.partitioning(pa.schema([SCHEMA.field(name) for name in by]), flavor="hive"),
        basename_template="part-{i}.parquet",
        max_partitions=1 << 30,
        max_open_files=_OPEN_FILES,
        existing_data_behavior="error",
    )
    return rows


def _schema(trace: Trace) -> pa.Schema:
    file = trace.files[0]
    metadata = {
        METADATA_KEY: json.dumps(dict(file.metadata)),
        CLOSING_KEY: json.dumps(file.closing and dict(file.closing)),
    }
    return SCHEMA.with_metadata(metadata)
