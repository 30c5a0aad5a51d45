"""
The record batches of one Arrow file, with or without its footer: of each only the columns that are asked for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

Range = tuple[int | None, int | None]  # half-open; None is no end

MAGIC = b"ARROW1"
STREAM_START = 8  # the magic, padded: from here an Arrow file reads as an Arrow stream, which needs no footer
UNREADABLE = (pa.ArrowException, OSError, ValueError, LookupError, MemoryError, OverflowError, EOFError)


def opened(path: Path) -> pa.NativeFile:
    """Open a file to read it."""
    # Not memory-mapped: of a file that shrinks meanwhile that would end the interpreter.
    return pa.OSFile(os.fsencode(path), "rb")


def stream(file: pa.NativeFile, columns: Sequence[str]) -> Iterator[Any]:
    """Yield the batches of an Arrow file in turn, without its footer, each with its custom metadata."""
    file.seek(STREAM_START)
    schema = pa.ipc.open_stream(file).schema
    file.seek(STREAM_START)
    reader = pa.ipc.open_stream(file, options=_only(schema, columns))
    while True:
        try:
            yield reader.read_next_batch_with_custom_metadata()
        except StopIteration:
            return


def batches(
    file: pa.NativeFile, columns: Sequence[str], cut: bool, within: Mapping[str, Range]
) -> Iterator[pa.RecordBatch | None]:
    """Yield each batch with these columns, or None in the place of one that has no row in the ranges."""
    if cut:
        yield from (item.batch for item in stream(file, columns))
        return
    schema = pa.ipc.open_file(file).schema
    reader = pa.ipc.open_file(file, options=_only(schema, columns))
    ranges = {name: ends for name, ends in within.items() if name in schema.names}
    looks = pa.ipc.open_file(file, options=_only(schema, list(ranges))) if ranges else None
    for number in range(reader.num_record_batches):
        if looks is None or _reaches(looks.get_batch(number), ranges):
            yield reader.get_batch(number)
        else:
            yield None


def _reaches(batch: pa.RecordBatch, ranges: Mapping[str, Range]) -> bool:
    """Whether a batch may have rows in all of the ranges."""
    for name, (start, stop) in ranges.items():
        ends = pc.min_max(batch.column(name)).as_py()
        if ends["min"] is None or (start is not None and ends["max"] < start):
            return False
        if stop is not None and ends["min"] >= stop:
            return False
    return True


def _only(schema: pa.Schema, columns: Sequence[str]) -> pa.ipc.IpcReadOptions:
    # An empty list would mean every column.
    indices = [schema.get_field_index(name) for name in columns] or [0]
    return pa.ipc.IpcReadOptions(included_fields=indices)
