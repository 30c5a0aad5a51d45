"""
The record batches of one trace file, complete or cut: each with only the columns that are asked for, checked.

Every batch passes through `BatchReader.read`, and whatever is wrong with it is met there: bytes that changed since they
were written, more than a batch may unpack to, offsets that point outside of their column, values that no event has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from dispatchmon.reading.messages import Damaged, custom_metadata, read_at, unpacked_size, walk
from dispatchmon.schema import CHECKSUM_KEY, MOST_BYTES, MOST_ROWS, UNCHECKED, checksum

Range = tuple[int | None, int | None]  # half-open; None is no end
UNREADABLE = (pa.ArrowException, OSError, ValueError, LookupError, MemoryError, OverflowError, EOFError)
_TAIL = b"\xff\xff\xff\xff\0\0\0\0"  # the end of an Arrow stream


class BatchReader:
    """
    An open file of a trace.

    `schema` is that of the file, with its metadata; `closed` says whether the file was closed, and `len` how many batches it
    has.

    Raises:
        UNREADABLE: it cannot be read, or is no Arrow file; of a damaged one `Damaged`.
    """

    def __init__(self, path: Path) -> None:
        # Not memory-mapped: of a file that shrinks meanwhile that would end the interpreter.
        self.file: BinaryIO = open(path, "rb", buffering=0)  # noqa: SIM115 - closed by close
        try:
            self.messages, self.closed = walk(self.file)
            if not self.messages:
                raise EOFError("it has no schema")
            header = self.messages.pop(0)
            self.schema = pa.ipc.read_schema(pa.py_buffer(read_at(self.file, header.start, header.stop - header.start)))
            self.plain = self.schema.remove_metadata()
            self.prefix = self.plain.serialize().to_pybytes()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> BatchReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self.messages)

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    @property
    def columns(self) -> list[str]:
        """Names of the columns in the file."""
        return list(self.schema.names)

    def read(
        self, number: int, columns: Sequence[str], ranges: Mapping[str, Range], *, checked: bool
    ) -> tuple[pa.RecordBatch | None, dict[bytes, bytes]]:
        """
        Read one batch with these columns, and the custom metadata it carries.

        The batch is None if it has no row in the ranges, or if no column is asked for. Its bytes are verified before
        anything is made of them.

        Args:
            number: of the batch, from 0.
            columns: names of columns of the file.
            ranges: by columns of the file.
            checked: whether the batch must have a checksum.

        Raises:
            UNREADABLE: it is damaged.
        """
        message = self.messages[number]
        start = self.messages[number - 1].stop if number else 0
        data = read_at(self.file, start, message.stop - start)
        if len(data) < message.stop - start:
            raise Damaged("the file ends before it")
        own = memoryview(data)[message.start - start :]
        rows, size = unpacked_size(own, message.body - message.start)
        if rows < 0 or rows > MOST_ROWS or size > MOST_BYTES:
            raise Damaged(
                f"it says that it has {rows:,} rows in {size:,} bytes, and at most {MOST_ROWS:,} in {MOST_BYTES:,} are read"
            )
        words = custom_metadata(own, message.body - message.start)
        self._verify(data, words, number, checked)
        stream = b"".join((self.prefix, own, _TAIL))
        if not columns or (ranges and not _reaches(self._decoded(stream, list(ranges)), ranges)):
            return None, words
        return self._decoded(stream, columns), words

    def _decoded(self, stream: bytes, columns: Sequence[str]) -> pa.RecordBatch:
        indices = [self.plain.get_field_index(name) for name in columns]
        options = pa.ipc.IpcReadOptions(included_fields=indices)
        batch = pa.ipc.open_stream(pa.py_buffer(stream), options=options).read_next_batch()
        batch.validate(full=True)  # a damaged offset must never reach an engine that trusts it
        return batch

    def _verify(self, data: bytes, words: Mapping[bytes, bytes], number: int, checked: bool) -> None:
        found = words.get(CHECKSUM_KEY)
        last_of_cut = not self.closed and number == len(self.messages) - 1
        if found is None:
            if checked:
                raise Damaged("its checksum is missing")
        elif found.startswith(UNCHECKED) and last_of_cut:
            pass  # the process was killed between the batch and its checksum
        elif checksum(data, found, number) != found:
            raise Damaged("its checksum is another, so it has changed since it was written")


def _reaches(batch: pa.RecordBatch, ranges: Mapping[str, Range]) -> bool:
    """Whether a batch may have rows in all of the ranges."""
    for name, (start, stop) in ranges.items():
        ends = pc.min_max(batch.column(name)).as_py()
        if ends["min"] is None or (start is not None and ends["max"] < start):
            return False
        if stop is not None and ends["min"] >= stop:
            return False
    return True
