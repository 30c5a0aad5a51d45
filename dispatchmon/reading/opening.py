"""
Opening one file: what it is, what it says of itself, and whether this version can read it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from dispatchmon.errors import NotATraceError, TraceNotFoundError, TraceVersionError
from dispatchmon.reading.batches import UNREADABLE, BatchReader
from dispatchmon.reading.contents import Contents
from dispatchmon.reading.forms import CLOSING, METADATA, read
from dispatchmon.reading.messages import MAGIC, Damaged
from dispatchmon.reading.trace_file import TraceFile, version_of
from dispatchmon.schema import (
    CHECKSUM_MINOR,
    CLOSING_KEY,
    COLUMNS_MINOR,
    FORMAT_MAJOR,
    METADATA_KEY,
    SCHEMA,
    parts_folder,
)


def open_file(path: Path) -> TraceFile:
    """
    Open one file, or what a flight recorder left of it.

    Raises:
        TraceNotFoundError: there is no such file.
        NotATraceError: it is not a trace, or is damaged beyond reading.
        TraceVersionError: a newer, incompatible dispatchmon wrote it.
    """
    file = _open_one(path)
    if not file.cut or not (folder := parts_folder(path)).is_dir():
        return file
    parts = []
    for part in sorted(folder.glob("*.arrow")):
        with suppress(NotATraceError):  # the one that was being begun
            parts.append(_open_one(part))
    if not parts:
        return file
    rows, batches, size = (sum(getattr(part, name) or 0 for part in parts) for name in ("rows", "batches", "size"))
    return replace(file, rows=rows, batches=batches, size=size, parts=tuple(parts))


def _open_one(path: Path) -> TraceFile:
    if not path.exists():
        raise TraceNotFoundError(f"{path} does not exist")
    if not path.is_file():
        raise NotATraceError(f"{path} is not a file, so it is not a trace")
    with path.open("rb") as file:
        if not (start := file.read(len(MAGIC))):
            raise NotATraceError(f"{path} is empty, so it is not a trace")
    if start != MAGIC:
        raise NotATraceError(f"{path} is not an Arrow file, so it is not a trace")
    try:
        reader = BatchReader(path)
    except Damaged as error:
        raise NotATraceError(f"{path} is damaged: {error}; record it again") from error
    except UNREADABLE as error:
        raise NotATraceError(f"{path} is cut or damaged before its first row, so there is nothing to read") from error
    with reader:
        metadata = _read_metadata(path, reader.schema)
        return _opened(path, reader, metadata)


def _opened(path: Path, reader: BatchReader, metadata: dict[str, Any]) -> TraceFile:
    """What a file says of itself. Of one that was not closed all is looked at, to learn how far it goes."""
    columns = _known_columns(reader.schema)
    checked = version_of(metadata)[1] >= CHECKSUM_MINOR
    closing: dict[str, Any] | None = None
    size, batches = path.stat().st_size, len(reader)
    if reader.closed:
        try:
            if batches:
                reader.read(0, (), {}, Contents(), checked=checked)  # whose checksum is over the schema and the metadata too
                closing = _closing(reader.read(batches - 1, (), {}, Contents(), checked=checked)[1])
        except UNREADABLE as error:
            reason = str(error) if isinstance(error, Damaged) else "its end cannot be read"
            raise NotATraceError(f"{path} is damaged: {reason}; record it again") from error
        return TraceFile(path, metadata, closing, False, (closing or {}).get("rows"), batches, size, columns)
    rows = 0
    for number in range(batches):
        try:
            batch, words = reader.read(number, columns[:1], {}, Contents(), checked=checked)
            closing = _closing(words)
        except UNREADABLE:
            batches = number  # here is the cut
            break
        rows += batch.num_rows if batch is not None else 0
    return TraceFile(path, metadata, closing, True, rows, batches, size, columns)


def _known_columns(schema: pa.Schema) -> tuple[str, ...]:
    return tuple(name for name in schema.names if name in SCHEMA.names)


def _read_metadata(path: Path, schema: pa.Schema) -> dict[str, Any]:
    """Return the run's metadata, after checking that this version can read the file."""
    text = (schema.metadata or {}).get(METADATA_KEY)
    if text is None:
        raise NotATraceError(f"{path} is an Arrow file, but not one that dispatchmon wrote")
    try:
        metadata = read(text, METADATA)
        major, minor = version_of(metadata)
    except ValueError as error:
        reason = f" ({error})" if isinstance(error, Damaged) else ""
        raise NotATraceError(f"{path} is damaged: its metadata cannot be read{reason}; record it again") from error
    if major != FORMAT_MAJOR:
        do = "upgrade dispatchmon" if major > FORMAT_MAJOR else "read it with the dispatchmon that wrote it"
        writer = metadata.get("dispatchmon") or "of unknown version"
        raise TraceVersionError(
            f"{path} has trace format {major}.{minor}, written by dispatchmon {writer}; "
            f"this dispatchmon reads format {FORMAT_MAJOR}.x: {do}"
        )
    for field in SCHEMA:
        found = schema.get_all_field_indices(field.name)
        if len(found) > 1 or (not found and (minor >= COLUMNS_MINOR or field.name == "event")):
            problem = "twice" if found else "not at all"
            raise NotATraceError(f"{path} is damaged: it has the column {field.name} {problem}; record it again")
        if found and schema.field(found[0]).type != field.type:
            actual = schema.field(found[0]).type
            raise NotATraceError(
                f"{path} is damaged: its column {field.name} is {actual}, not {field.type}; record it again"
            )
    return metadata


def _closing(words: dict[bytes, bytes]) -> dict[str, Any] | None:
    """Return the closing statement that a batch carries, if it does."""
    text = words.get(CLOSING_KEY)
    try:
        return None if text is None else read(text, CLOSING)
    except Damaged as error:
        raise Damaged(f"its closing statement cannot be read ({error})") from error
