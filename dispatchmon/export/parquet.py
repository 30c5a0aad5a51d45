"""
A trace as Parquet: one file, or a folder of files by rank and step, from which any engine takes over.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dispatchmon.reading.query import Filters, select
from dispatchmon.reading.trace_files import TraceFiles
from dispatchmon.schema import CLOSING_KEY, METADATA_KEY, SCHEMA

PARTITIONS = ("rank", "step")
COMPRESSION = "zstd"


def write_parquet(
    trace: TraceFiles, path: Path, filters: Filters | None = None, *, on_progress: Callable[[float], None] | None = None
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
    trace: TraceFiles,
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
    rows, files = 0, dict[tuple[int, ...], int]()
    schema = pa.schema([field for field in SCHEMA if field.name not in by], _schema(trace).metadata)
    folder.mkdir()
    with ExitStack() as opened:
        writer, last = None, None
        for key, piece in _pieces(select(trace, {}, filters or Filters(), on_progress=on_progress), by):
            if writer is None or key != last:  # rows are in order of rank and step: one file is open at a time
                opened.close()
                place = folder.joinpath(*(f"{name}={value}" for name, value in zip(by, key, strict=True)))
                place.mkdir(parents=True, exist_ok=True)
                files[key] = files.get(key, -1) + 1
                path = place / f"part-{files[key]}.parquet"
                writer, last = opened.enter_context(pq.ParquetWriter(path, schema, compression=COMPRESSION)), key
            writer.write_batch(piece.select(schema.names))
            rows += piece.num_rows
    return rows


def is_export(path: Path) -> bool:
    """Whether a Parquet file was written by one of the functions above."""
    try:
        return METADATA_KEY in (pq.read_schema(path).metadata or {})
    except (pa.ArrowException, OSError):
        return False


def _pieces(batches: Iterable[pa.RecordBatch], by: Sequence[str]) -> Iterator[tuple[tuple[int, ...], pa.RecordBatch]]:
    """Yield the batches, cut where one of the columns changes, each piece with the values of these columns."""
    for batch in batches:
        keys = np.stack([batch.column(name).to_numpy() for name in by], axis=1)
        starts = [0, *(np.flatnonzero((np.diff(keys, axis=0) != 0).any(axis=1)) + 1).tolist()]
        for start, stop in zip(starts, [*starts[1:], batch.num_rows], strict=True):
            if stop > start:
                yield tuple(keys[start].tolist()), batch.slice(start, stop - start)


def _schema(trace: TraceFiles) -> pa.Schema:
    file = trace.files[0]
    metadata = {
        METADATA_KEY: json.dumps(dict(file.metadata)),
        CLOSING_KEY: json.dumps(file.closing and dict(file.closing)),
    }
    return SCHEMA.with_metadata(metadata)
