"""
Record batches to an Arrow file that is readable up to its last batch at any moment.

A process that is killed leaves whole batches and at most one torn one, which readers leave out. A batch for which there is
no room is refused while the file can still be closed; one that fails half-way is taken back.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from dispatchmon.schema import (
    CHECKSUM_KEY,
    CLOSING_KEY,
    DIGITS,
    METADATA_KEY,
    MOST_BYTES,
    MOST_ROWS,
    SCHEMA,
    UNCHECKED,
    checksum,
    parts_folder,
)
from dispatchmon.words.harmless import storable
from dispatchmon.writing.locks import in_nobodys_use, lock, unlock

resource: Any
try:
    import resource
except ImportError:  # Windows limits no file
    resource = None

O_BINARY: int = getattr(os, "O_BINARY", 0)  # of Windows
OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd")
CLOSING_BYTES = 1 << 14  # kept free for the closing statement
BLOCK_BYTES = 24  # of the footer, for each batch
END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
EMPTY = pa.RecordBatch.from_pylist([], schema=SCHEMA)


class TraceWriter:
    """
    One trace file.

    Every method raises an `OSError` or a `pa.ArrowException` where the file cannot be written; `close` may follow one.
    """

    def __init__(self, path: Path, metadata: Mapping[str, Any]) -> None:
        self.path = path
        self.schema = SCHEMA.with_metadata({METADATA_KEY: json.dumps(storable(metadata))})
        self.size = self.header = 0  # bytes up to the end of the last whole batch; up to the first one
        self.batches = 0  # in the file, the empty ones included
        self.writer: Any = None
        self.file: Any = None
        self.number = -1  # a file descriptor of our own, which follows the file and not its name
        self.torn = False  # a batch failed half-way: Arrow's writer no longer knows where it is

    def open(self) -> None:
        """
        Create the file, with the metadata in it; until it has them there is none, or what was there before.

        Raises:
            TraceInUseError: another monitor is writing it.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        real = Path(os.path.realpath(self.path))  # a link stays a link
        new = real.with_name(f".{secrets.token_hex(8)}.new")
        with in_nobodys_use(real) as mode:
            try:
                self.number = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | O_BINARY, mode)
                lock(self.number)
                self.file = pa.OSFile(os.fsencode(new), "wb")
                self.writer = pa.ipc.new_file(self.file, self.schema, options=OPTIONS)
                self.append(EMPTY)  # Arrow writes the metadata with the first batch
                self.header = self.size
                os.replace(new, real)
            except BaseException:
                self.abandon()
                new.unlink(missing_ok=True)
                raise
        shutil.rmtree(parts_folder(self.path), ignore_errors=True)  # of a killed run that this one overwrites

    def write(self, batch: pa.RecordBatch) -> None:
        """Append a batch, and leave it to the operating system: from here on a killed process does not lose it."""
        self.require_place()
        for piece in pieces(batch):
            self.require_room(piece)
            self.append(piece)

    def close(self, statement: Mapping[str, Any]) -> Mapping[str, Any]:
        """Write the closing statement, and after it the footer, without which only dispatchmon reads the file."""
        if self.number < 0:
            return statement
        words = {CLOSING_KEY: json.dumps(storable(statement))}
        try:
            self.require_place()
            if self.torn:
                self.write_at(self.size, message(EMPTY, words, self.batches))
            else:
                self.append(EMPTY, words)
                self.writer.close()
            self.require_name()
            return statement
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Leave the file as it is, without an end."""
        if self.number >= 0:
            unlock(self.number)
            os.close(self.number)
            self.number = -1
        if self.file is not None:
            self.file.close()

    def append(self, batch: pa.RecordBatch, words: Mapping[bytes, str | bytes] | None = None) -> None:
        to_come = unchecked()
        try:
            self.writer.write_batch(batch, custom_metadata={**(words or {}), CHECKSUM_KEY: to_come})
            end = self.file.tell()
            self.check(end, to_come)
        except BaseException:
            self.torn = True
            os.ftruncate(self.number, self.size)
            raise
        self.size = end
        self.batches += 1

    def check(self, end: int, to_come: bytes) -> None:
        """Put the checksum of the batch that ends here into its place."""
        os.lseek(self.number, self.size, os.SEEK_SET)
        data = b""
        while len(data) < end - self.size and (more := os.read(self.number, end - self.size - len(data))):
            data += more
        if (digits := checksum(data, to_come, self.batches)) is None:
            raise OSError(errno.EIO, "what was written is not there")
        self.write_at(self.size + data.find(to_come), digits)

    def write_at(self, at: int, data: bytes) -> None:
        """Write into the file at a position, past what Arrow's writer knows of."""
        os.lseek(self.number, at, os.SEEK_SET)
        while data:
            data = data[os.write(self.number, data) :]

    def require_place(self) -> None:
        """Notice that somebody else has changed the file, so that what is written to it would be lost without an error."""
        self.require_name()
        size = os.fstat(self.number).st_size
        if size < self.size:
            raise OSError(errno.EIO, f"somebody cut it from {self.size} bytes to {size}")
        if size > self.size:
            raise OSError(errno.EIO, "somebody else has written to it")

    def require_name(self) -> None:
        """Notice that the file was deleted or replaced."""
        mine = os.fstat(self.number)
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            there = None
        if there is None or (there.st_ino, there.st_dev) != (mine.st_ino, mine.st_dev):
            raise FileNotFoundError(errno.ENOENT, "it was deleted or replaced")

    def require_room(self, batch: pa.RecordBatch) -> None:
        """Refuse a batch that would leave no room for the end of the file."""
        room, why = room_after(self.path, self.size)
        room -= CLOSING_BYTES + self.header + BLOCK_BYTES * self.batches
        if batch.nbytes + CLOSING_BYTES > room and encoded_size(batch) > room:
            raise OSError(why, os.strerror(why))


def room_after(path: Path, end: int) -> tuple[int, int]:
    """(bytes that may be written at the end of a file, the error that more of them would be)."""
    free = shutil.disk_usage(path).free
    if resource is None:
        return free, errno.ENOSPC
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit != resource.RLIM_INFINITY and limit - end < free:
        return limit - end, errno.EFBIG
    return free, errno.ENOSPC


def encoded_size(batch: pa.RecordBatch) -> int:
    """Bytes of a batch in the file."""
    with pa.MockOutputStream() as counter, pa.ipc.new_stream(counter, SCHEMA, options=OPTIONS) as writer:
        writer.write_batch(batch)
        size: int = counter.size()
    return size


def unchecked() -> bytes:
    """What stands in the place of a checksum until it is known: words that stand nowhere else."""
    return UNCHECKED + secrets.token_hex(DIGITS // 2).encode()


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch in parts that a reader does not refuse."""
    if batch.num_rows > 1 and (batch.num_rows > MOST_ROWS // 2 or batch.nbytes > MOST_BYTES // 2):
        half = batch.num_rows // 2
        yield from pieces(batch.slice(0, half))
        yield from pieces(batch.slice(half))
    else:
        yield batch


def message(batch: pa.RecordBatch, words: Mapping[bytes, str], number: int) -> bytes:
    """A batch as it stands in a file, with its checksum."""
    to_come = unchecked()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA, options=OPTIONS) as writer:
        writer.write_batch(batch, custom_metadata={**words, CHECKSUM_KEY: to_come})
    stream = pa.BufferReader(sink.getvalue())
    pa.ipc.read_message(stream)  # the schema
    data = bytes(stream.read()).removesuffix(END_OF_STREAM)
    digits = checksum(data, to_come, number)
    assert digits is not None
    return data.replace(to_come, digits)
