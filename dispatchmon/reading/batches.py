"""
The record batches of one trace file, complete or cut: each with only the columns that are asked for, checked.

Every batch passes through `BatchReader.read`, and whatever is wrong with it is met there: bytes that changed since they
were written, more than a batch may unpack to, offsets that point outside of their column, values that no event has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from dispatchmon.reading.contents import Contents, Test, Within
from dispatchmon.reading.messages import (
    STREAM_START,
    Damaged,
    custom_metadata,
    read_at,
    read_into,
    unpacked_size,
    walk,
)
from dispatchmon.schema import CHECKSUM_KEY, MOST_BYTES, MOST_ROWS, UNCHECKED, checksum

UNREADABLE = (pa.ArrowException, OSError, ValueError, LookupError, MemoryError, OverflowError, EOFError)
_SMALL = 1 << 18  # bytes
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
        self.file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed by close
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
        self,
        number: int,
        columns: Sequence[str],
        within: Within,
        known: Contents,
        *,
        checked: bool,
        test: Test | None = None,
    ) -> tuple[pa.RecordBatch | None, dict[bytes, bytes]]:
        """
        Read one batch with these columns, and the custom metadata it carries.

        The batch is None if it has no row within what is asked for, if no column is asked for, or if nobody needs it. Its
        bytes are verified before anything is made of them.

        Args:
            number: of the batch, from 0.
            columns: names of columns of the file.
            within: by columns of the file.
            known: what is known of the batch already; what is learned is put there.
            checked: whether the batch must have a checksum.
            test: whether anybody needs it, by columns of the file.

        Raises:
            UNREADABLE: it is damaged.
        """
        message = self.messages[number]
        start = self.messages[number - 1].stop if number else 0
        stream, data = self._loaded(number, start, message.stop)
        own = data[message.start - start :]
        rows, size = unpacked_size(own, message.body - message.start)
        if rows < 0 or rows > MOST_ROWS or size > MOST_BYTES:
            raise Damaged(
                f"it says that it has {rows:,} rows in {size:,} bytes, and at most {MOST_ROWS:,} in {MOST_BYTES:,} are read"
            )
        words = custom_metadata(own, message.body - message.start)
        self._verify(data, message.body - start, words, number, checked)
        if not columns:
            return None, words
        if not rows:  # the first batch and the last one of every file
            return pa.RecordBatch.from_pylist([], schema=pa.schema([self.plain.field(name) for name in columns])), words
        if unknown := [name for name in within if name not in known.columns]:
            known.learn(self._decoded(stream, unknown), words.get(CHECKSUM_KEY))
            if not known.may_hold(within):
                return None, words
        if test is not None and not test.needs(self._decoded(stream, test.columns)):
            return None, words
        return self._decoded(stream, columns), words

    def _loaded(self, number: int, start: int, stop: int) -> tuple[pa.Buffer, memoryview]:
        """These bytes of the file, once: as an Arrow stream of the schema and this batch, and as they are."""
        prefix = self.prefix if number else b""  # the first batch has the schema before it
        buffer = pa.allocate_buffer(len(prefix) + stop - start + len(_TAIL))
        view = memoryview(buffer).cast("B")
        view[: len(prefix)] = prefix
        view[len(view) - len(_TAIL) :] = _TAIL
        data = view[len(prefix) : len(view) - len(_TAIL)]
        if read_into(self.file, start, data) < len(data):
            raise Damaged("the file ends before it")
        return buffer.slice(0 if number else STREAM_START), data.toreadonly()

    def _decoded(self, stream: pa.Buffer, columns: Sequence[str]) -> pa.RecordBatch:
        indices = [self.plain.get_field_index(name) for name in columns]
        # To hand a small batch out to threads takes longer than to decode it.
        options = pa.ipc.IpcReadOptions(included_fields=indices, use_threads=stream.size > _SMALL)
        batch = pa.ipc.open_stream(stream, options=options).read_next_batch()
        batch.validate(full=True)  # a damaged offset must never reach an engine that trusts it
        return batch

    def _verify(
        self, data: memoryview, head: int, words: Mapping[bytes, bytes], number: int, checked: bool
    ) -> None:
        found = words.get(CHECKSUM_KEY)
        last_of_cut = not self.closed and number == len(self.messages) - 1
        if found is None:
            if checked:
                raise Damaged("its checksum is missing")
        elif found.startswith(UNCHECKED) and last_of_cut:
            pass  # the process was killed between the batch and its checksum
        elif checksum(data, found, number, head) != found:
            raise Damaged("its checksum is another, so it has changed since it was written")

