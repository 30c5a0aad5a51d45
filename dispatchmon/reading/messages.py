"""
The messages of an Arrow file as they lie in it: where each begins and ends, and how much memory it asks for.

An Arrow file is an Arrow stream between two marks, and after it a footer that says where the messages are. The footer is
not believed: messages are walked from the first to the last, so that complete and cut files are read in one way, and what is
verified is what is decoded. Nothing is allocated by a number in the file before it was compared with the file's own size.

Layout: https://arrow.apache.org/docs/format/Columnar.html#encapsulated-message-format; the fields of the flatbuffers are
those of Message.fbs.
"""

from __future__ import annotations

import struct
from io import FileIO
from typing import BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
MAGIC = b"ARROW1"
STREAM_START = 8  # the magic, padded: from here an Arrow file reads as an Arrow stream
_CONTINUATION = 0xFFFFFFFF
_SCHEMA, _RECORD_BATCH = 1, 3  # MessageHeader


class Damaged(ValueError):
    """What is read cannot be; the message says why, as the end of a sentence."""


class Message(NamedTuple):
    """One message: positions in the file of its first byte, of its body, and behind its last byte."""

    start: int
    body: int
    stop: int
    is_schema: bool


def walk(file: BinaryIO) -> tuple[list[Message], bool]:
    """
    Return the whole messages of a file in order, the first being the schema, and whether the file was closed after them.

    Raises:
        Damaged: the file was closed, but its messages do not lead from its begin to its end.
    """
    size = file.seek(0, 2)
    closed = _ends(file, size)
    found: list[Message] = []
    at = STREAM_START
    while len(head := read_at(file, at, 8)) == 8:
        mark, length = struct.unpack("<Ii", head)
        if mark == _CONTINUATION and length == 0 and at + 8 == closed:
            return found, True
        if mark != _CONTINUATION or not 0 < length <= size - at - 8:
            break
        try:
            kind, body = _kind_and_body(read_at(file, at + 8, length))
        except Damaged:
            break
        if (kind != _RECORD_BATCH and found) or (kind != _SCHEMA and not found):
            break
        if not 0 <= body <= size - at - 8 - length:
            break
        message = Message(at, at + 8 + length, at + 8 + length + body, kind == _SCHEMA)
        found.append(message)
        at = message.stop
    if closed:
        raise Damaged(f"batch {max(1, len(found))} is not where it should be")
    return found, False


def _ends(file: BinaryIO, size: int) -> int:
    """Where the footer of a file begins that was closed; 0 if it was not."""
    tail = read_at(file, max(0, size - 10), 10)
    if len(tail) < 10 or tail[4:] != MAGIC:
        return 0
    footer = size - 10 - int(struct.unpack("<i", tail[:4])[0])
    return footer if STREAM_START < footer < size - 10 else 0


def read_at(file: BinaryIO, at: int, size: int) -> bytes:
    """Bytes of a file; fewer at its end."""
    file.seek(at)
    data = file.read(size)
    while len(data) < size and (more := file.read(size - len(data))):  # an unbuffered read may give less
        data += more
    return data


def read_into(file: FileIO, at: int, data: memoryview) -> int:
    """Fill memory with the bytes of a file; return how many there were."""
    file.seek(at)
    done = 0
    while done < len(data) and (n := file.readinto(data[done:])):
        done += n
    return done


def unpacked_size(data: memoryview, header: int) -> tuple[int, int]:
    """
    How many rows a record batch says it has, and how many bytes it says its columns take once they are decompressed.

    Args:
        data: the bytes of the message.
        header: how many of them come before its body.

    Raises:
        Damaged: it does not say so in a way that can be read.
    """
    meta, body = data[8:header], data[header:]
    batch = _table(meta, _field(meta, _root(meta), 2))
    rows = _value(meta, _field(meta, batch, 0), "<q")
    compressed = bool(_field(meta, batch, 3))
    starts, lengths = _buffers(meta, batch)
    if ((starts < 0) | (starts > len(body))).any() or ((lengths < 0) | (lengths > len(body) - starts)).any():
        raise Damaged("a column lies outside of its batch")
    if compressed:  # each begins with its size, or with -1 if it is as it was
        filled = lengths > 0
        at = starts[filled]
        if (at % 8).any() or (lengths[filled] < 8).any():
            raise Damaged("a column does not begin where it could")
        unpacked = np.frombuffer(body[: len(body) // 8 * 8], "<i8")[at // 8]
        lengths[filled] = np.where(unpacked == -1, lengths[filled] - 8, unpacked)
        if (lengths < 0).any():
            raise Damaged("a column has a negative size")
    return rows, sum(lengths.tolist())


def custom_metadata(data: memoryview, header: int) -> dict[bytes, bytes]:
    """
    The words that a record batch carries beside its rows.

    Args:
        data: the bytes of the message.
        header: how many of them come before its body.

    Raises:
        Damaged: they cannot be read.
    """
    meta = data[8:header]
    found: dict[bytes, bytes] = {}
    if field := _field(meta, _root(meta), 4):
        vector = _table(meta, field)
        n = _number(meta, vector, "<I")
        if vector + 4 + 4 * n > len(meta):
            raise Damaged("its list of words is cut")
        for at in range(vector + 4, vector + 4 + 4 * n, 4):
            pair = _table(meta, at)
            key, value = (_text(meta, _field(meta, pair, index)) for index in (0, 1))
            found[key] = value
    return found


def _buffers(meta: memoryview, batch: int) -> tuple[Numbers, Numbers]:
    """The positions in the body, and the sizes, of the buffers of a record batch."""
    if not (field := _field(meta, batch, 2)):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    vector = _table(meta, field)
    n = _number(meta, vector, "<I")
    if vector + 4 + 16 * n > len(meta):
        raise Damaged("its list of columns is cut")
    pairs = np.frombuffer(meta, "<i8", 2 * n, vector + 4).reshape(n, 2)
    return pairs[:, 0].copy(), pairs[:, 1].copy()


# A flatbuffer, as much of it as is needed: https://flatbuffers.dev/internals
def _kind_and_body(meta: bytes) -> tuple[int, int]:
    """What a message's header is, and how long its body."""
    view = memoryview(meta)
    root = _root(view)
    return _value(view, _field(view, root, 1), "<B"), _value(view, _field(view, root, 3), "<q")


def _root(meta: memoryview) -> int:
    return _number(meta, 0, "<I")


def _table(meta: memoryview, field: int) -> int:
    return field + _number(meta, field, "<I")


def _field(meta: memoryview, table: int, index: int) -> int:
    """Position of a field of a table; 0 if the table leaves it out."""
    slots = table - _number(meta, table, "<i")
    slot = 4 + 2 * index
    if slot + 2 > _number(meta, slots, "<H"):
        return 0
    offset = _number(meta, slots + slot, "<H")
    return table + offset if offset else 0


def _text(meta: memoryview, field: int) -> bytes:
    """The bytes of a text; none if the table leaves it out."""
    if not field:
        return b""
    text = _table(meta, field)
    n = _number(meta, text, "<I")
    if text + 4 + n > len(meta):
        raise Damaged("one of its words is cut")
    return bytes(meta[text + 4 : text + 4 + n])


def _number(data: memoryview, at: int, form: str) -> int:
    if not 0 <= at <= len(data) - struct.calcsize(form):
        raise Damaged("it points outside of itself")
    return int(struct.unpack_from(form, data, at)[0])


def _value(meta: memoryview, field: int, form: str) -> int:
    """The number in a field; 0 if the table leaves it out."""
    return _number(meta, field, form) if field else 0
