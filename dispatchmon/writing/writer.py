"""
Record batches to an Arrow file that is readable up to its last batch at any moment.

A process that is killed leaves whole batches and at most one torn one, which readers leave out. A batch for which there is
no room is refused while the file can still be closed; one that fails half-way is taken back.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from dispatchmon.schema import CLOSING_KEY, METADATA_KEY, SCHEMA, parts_folder

OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd")
CLOSING_BYTES = 1 << 14  # kept free for the closing statement
BLOCK_BYTES = 24  # of the footer, for each batch
EMPTY = pa.RecordBatch.from_pylist([], schema=SCHEMA)


class TraceWriter:
    """
    One trace file.

    Every method raises an `OSError` or a `pa.ArrowException` where the file cannot be written; `close` may follow one.
    """

    def __init__(self, path: Path, metadata: Mapping[str, Any]) -> None:
        self.path = path
        self.schema = SCHEMA.with_metadata({METADATA_KEY: json.dumps(metadata)})
        self.size = self.header = 0  # bytes up to the end of the last whole batch; up to the first one
        self.batches = 0
        self.writer: Any = None
        self.file: Any = None
        self.number = -1  # a file descriptor of our own, which follows the file and not its name
        self.torn = False  # a batch failed half-way: Arrow's writer no longer knows where it is

    def open(self) -> None:
        """Create the file, with the metadata in it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(parts_folder(self.path), ignore_errors=True)  # of a killed run that this one overwrites
        self.file = pa.OSFile(os.fsencode(self.path), "wb")
        self.number = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        self.writer = pa.ipc.new_file(self.file, self.schema, options=OPTIONS)
        self.append(EMPTY)  # Arrow writes the metadata with the first batch
        self.header = self.size

    def write(self, batch: pa.RecordBatch) -> None:
        """Append a batch, and leave it to the operating system: from here on a killed process does not lose it."""
        self.require_place()
        self.require_room(batch)
        self.append(batch)
        self.batches += 1

    def close(self, statement: Mapping[str, Any]) -> Mapping[str, Any]:
        """Write the closing statement, and after it the footer, without which only dispatchmon reads the file."""
        if self.number < 0:
            return statement
        words = {CLOSING_KEY: json.dumps(statement)}
        try:
            if self.torn:
                os.pwrite(self.number, message(EMPTY, words), self.size)
            else:
                self.append(EMPTY, words)
                self.writer.close()
            self.require_place()
            return statement
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Leave the file as it is, without an end."""
        if self.number >= 0:
            os.close(self.number)
            self.number = -1
            self.file.close()

    def append(self, batch: pa.RecordBatch, words: Mapping[bytes, str] | None = None) -> None:
        try:
            self.writer.write_batch(batch, custom_metadata=words)
        except BaseException:
            self.torn = True
            os.ftruncate(self.number, self.size)
            raise
        self.size = self.file.tell()

    def require_place(self) -> None:
        """Notice that the file was deleted or replaced: what is written to it would be lost without an error."""
        mine = os.fstat(self.number)
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            there = None
        if there is None or (there.st_ino, there.st_dev) != (mine.st_ino, mine.st_dev):
            raise FileNotFoundError(errno.ENOENT, "it was deleted or replaced")

    def require_room(self, batch: pa.RecordBatch) -> None:
        """Refuse a batch that would leave no room for the end of the file."""
        room, why = room_after(self.number, self.size)
        room -= CLOSING_BYTES + self.header + BLOCK_BYTES * self.batches
        if batch.nbytes + CLOSING_BYTES > room and encoded_size(batch) > room:
            raise OSError(why, os.strerror(why))


def room_after(number: int, end: int) -> tuple[int, int]:
    """(bytes that may be written at the end of a file, the error that more of them would be)."""
    disk = os.fstatvfs(number)
    free = disk.f_bavail * disk.f_frsize
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


def message(batch: pa.RecordBatch, words: Mapping[bytes, str]) -> bytes:
    """A batch as it stands in a file."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA, options=OPTIONS) as writer:
        writer.write_batch(batch, custom_metadata=words)
    stream = pa.BufferReader(sink.getvalue())
    pa.ipc.read_message(stream)  # the schema
    return bytes(stream.read())
