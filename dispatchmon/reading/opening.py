"""
Opening one file: what it is, what it says of itself, and whether this version can read it.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from dispatchmon.errors import NotATraceError, TraceNotFoundError, TraceVersionError
from dispatchmon.reading.batches import MAGIC, STREAM_START, UNREADABLE, opened, stream
from dispatchmon.reading.trace_file import TraceFile
from dispatchmon.schema import CLOSING_KEY, COLUMNS_MINOR, FORMAT_MAJOR, METADATA_KEY, SCHEMA, parts_folder

_METADATA_TYPES = {"rank": int, "world_size": int, "modules": list, "parameters": list, "settings": dict}


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
    with opened(path) as file:
        if not (start := file.read(STREAM_START)):
            raise NotATraceError(f"{path} is empty, so it is not a trace")
        if not start.startswith(MAGIC):
            raise NotATraceError(f"{path} is not an Arrow file, so it is not a trace")
        size = file.size()
        try:
            reader = pa.ipc.open_file(file)
        except UNREADABLE:
            return _open_cut(path, file, size)
        metadata = _read_metadata(path, reader.schema)
        closing = None
        try:
            batches = reader.num_record_batches
            if batches:
                closing = _read_closing(reader.get_batch_with_custom_metadata(batches - 1))
        except UNREADABLE as error:
            raise NotATraceError(f"{path} is damaged: its end cannot be read; record it again") from error
    rows = closing.get("rows") if closing else None
    rows = rows if isinstance(rows, int) else None
    return TraceFile(path, metadata, closing, False, rows, batches, size, _known_columns(reader.schema))


def _open_cut(path: Path, file: pa.NativeFile, size: int) -> TraceFile:
    """Open a file without a footer: read it as a stream, to learn how far it goes."""
    try:
        file.seek(STREAM_START)
        schema = pa.ipc.open_stream(file).schema
    except UNREADABLE as error:
        raise NotATraceError(f"{path} is cut or damaged before its first row, so there is nothing to read") from error
    metadata = _read_metadata(path, schema)
    closing, rows, batches = None, 0, 0
    try:
        for item in stream(file, [_known_columns(schema)[0]]):
            closing = _read_closing(item)
            rows += item.batch.num_rows
            batches += 1
    except UNREADABLE:
        pass  # here is the cut
    return TraceFile(path, metadata, closing, True, rows, batches, size, _known_columns(schema))


def _known_columns(schema: pa.Schema) -> tuple[str, ...]:
    return tuple(name for name in schema.names if name in SCHEMA.names)


def _read_metadata(path: Path, schema: pa.Schema) -> dict[str, Any]:
    """Return the run's metadata, after checking that this version can read the file."""
    text = (schema.metadata or {}).get(METADATA_KEY)
    if text is None:
        raise NotATraceError(f"{path} is an Arrow file, but not one that dispatchmon wrote")
    try:
        metadata = json.loads(text)
        version = str(metadata["format"])
        major, minor = (int(part) for part in version.split("."))
        for key, kind in _METADATA_TYPES.items():
            if not isinstance(metadata.get(key), kind | None):
                raise TypeError(key)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NotATraceError(f"{path} is damaged: its metadata cannot be read; record it again") from error
    if major != FORMAT_MAJOR:
        do = "upgrade dispatchmon" if major > FORMAT_MAJOR else "read it with the dispatchmon that wrote it"
        writer = metadata.get("dispatchmon", "of unknown version")
        raise TraceVersionError(
            f"{path} has trace format {version}, written by dispatchmon {writer}; "
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
    return dict(metadata)


def _read_closing(item: Any) -> dict[str, Any] | None:
    """Return the closing statement that this batch carries, if it does."""
    text = (item.custom_metadata or {}).get(CLOSING_KEY)
    if text is None:
        return None
    closing = json.loads(text)
    if not isinstance(closing, dict):
        raise ValueError("the closing statement is no JSON object")
    return closing
