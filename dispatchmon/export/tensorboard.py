"""
Scalars for TensorBoard: `layer1.relu/input/min` over steps, one run per rank.

An event file is a TFRecord of protocol buffers. Both are simple enough to be written here, so that neither TensorBoard nor
torch is needed (formats: tensorflow/core/lib/io/record_writer.h, tensorflow/core/util/event.proto).
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import IO

from dispatchmon.export.scalars import Scalar, scalars
from dispatchmon.reading.query import Filters
from dispatchmon.reading.trace_file import TraceFile
from dispatchmon.reading.trace_files import TraceFiles

SUFFIX = ".dispatchmon"  # of every event file that is written here


def write_tensorboard(
    trace: TraceFiles,
    folder: Path,
    filters: Filters | None = None,
    *,
    on_progress: Callable[[float], None] | None = None,
) -> int:
    """
    Write event files into a new folder, in `rank0`, `rank1`, … inside it if there are several ranks.

    Returns how many scalars they hold. A scalar is a float32.

    Raises:
        NotATraceError: the trace is damaged.
    """
    folder.mkdir()
    files = {file.rank: file for file in trace.files}
    several = len(files) > 1 or any(file.world_size > 1 for file in trace.files)
    n = 0
    for rank, all_of in groupby(scalars(trace, filters, on_progress=on_progress), lambda each: each.rank):
        run = folder / f"rank{rank}" if several else folder
        run.mkdir(exist_ok=True)
        began = started(files[rank])
        name = f"events.out.tfevents.{int(began)}.{socket.gethostname()}.{rank}{SUFFIX}"
        with open(run / name, "wb") as file:
            n += write_run(file, began, all_of)
    return n


def write_run(file: IO[bytes], began: float, all_of: Iterator[Scalar]) -> int:
    """One run: an event that says the version, then one per step with all of its values."""
    file.write(record(event(began, 0, text(3, "brain.Event:2"))))
    n = 0
    for step, group in groupby(all_of, lambda each: each.step):
        values, first = bytearray(), None
        for each in group:
            first = each.start_ns if first is None else min(first, each.start_ns)
            value = (
                text(1, f"{each.of}/{each.quantity}/{each.statistic}")
                + b"\x15"
                + struct.pack("<f", clipped(each.value))
            )
            values += bytes_field(1, value)
            n += 1
        file.write(record(event(began + (first or 0) / 1e9, step, bytes_field(5, bytes(values)))))
    return n


def started(file: TraceFile) -> float:
    """When the recording began, in seconds since 1970."""
    try:
        return datetime.fromisoformat(str(file.metadata.get("started"))).timestamp()
    except ValueError:
        return 0.0


def clipped(value: float) -> float:
    """A scalar is a float32."""
    return max(-3.4028234e38, min(3.4028234e38, value))


# ----------------------------------------------------------------------------------------------------- protocol buffers
def varint(n: int) -> bytes:
    """An integer in groups of seven bits."""
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)


def bytes_field(number: int, content: bytes) -> bytes:
    """A field that holds a string, bytes or a message."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def text(number: int, content: str) -> bytes:
    """A field that holds a string."""
    return bytes_field(number, content.encode())


def event(wall_time: float, step: int, content: bytes) -> bytes:
    """An `Event`: its time, its step, and what it holds."""
    return b"\x09" + struct.pack("<d", wall_time) + b"\x10" + varint(step) + content


# ----------------------------------------------------------------------------------------------------- TFRecord
def record(content: bytes) -> bytes:
    """Length, checksum of the length, content, checksum of the content."""
    length = struct.pack("<Q", len(content))
    return length + masked(crc32c(length)) + content + masked(crc32c(content))


def masked(crc: int) -> bytes:
    """A checksum as the file holds it."""
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _crc_table() -> tuple[int, ...]:
    table = []
    for n in range(256):
        for _ in range(8):
            n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
        table.append(n)
    return tuple(table)


_CRC = _crc_table()


def crc32c(content: bytes) -> int:
    """The Castagnoli checksum (RFC 3720, appendix B.4)."""
    crc, table = 0xFFFFFFFF, _CRC
    for byte in content:
        crc = crc >> 8 ^ table[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF
