"""
Small synthetic traces, written from lists of row dicts by the schema alone: no torch, no monitor.

A row names only the columns it cares about; `DEFAULTS` fills the others. `event` defaults to the row's position.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import xxhash

from dispatchmon.reading.messages import walk
from dispatchmon.schema import CHECKSUM_KEY, CLOSING_KEY, METADATA_KEY, SCHEMA

DEFAULTS: dict[str, Any] = {
    "kind": "op",
    "rank": 0,
    "step": 0,
    "micro_step": 0,
    "phase": "forward",
    "op": "aten.relu.default",
    "arguments": "{}",
    "mutation": "none",
    "role": "input",
    "arg": "self",
    "written": False,
    "dtype": "float32",
    "device": "cpu",
    "start_ns": 0,
    "duration_ns": 1000,
}
METADATA: dict[str, Any] = {
    "format": "1.2",
    "dispatchmon": "0.1.0",
    "torch": "2.13.0",
    "python": "3.11.7",
    "platform": "Linux-6.1-x86_64",
    "rank": 0,
    "world_size": 1,
    "model": "Net",
    "modules": [{"name": "", "class": "Net"}, {"name": "head", "class": "Linear"}],
    "parameters": [{"name": "head.weight", "shape": [8, 4], "dtype": "float32"}],
    "settings": {"record": ["ops"]},
    "command": ["train.py", "--lr", "0.1"],
    "started": "2026-01-02T03:04:05+00:00",
    "statistics_backend": "torch",
}


def make_rows(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Complete the rows: every column of the schema, from the row, from `DEFAULTS`, or null."""
    return [{**dict.fromkeys(SCHEMA.names), **DEFAULTS, "event": i, **row} for i, row in enumerate(rows)]


def write_trace(
    path: Path,
    rows: Iterable[Mapping[str, Any]] = ({},),
    *,
    metadata: Mapping[str, Any] | None = None,
    closing: Mapping[str, Any] | None = None,
    closed: bool = True,
    schema: pa.Schema = SCHEMA,
    batch_rows: int = 4,
) -> Path:
    """
    Write a trace and return its path.

    `metadata` and `closing` override single keys of the usual ones. With `closed=False` there is a footer, but no
    closing statement; `cut` makes a file that was never closed. Columns that `schema` lacks are left out.
    """
    complete = make_rows(rows)
    statement = {
        "complete": True,
        "reason": None,
        "events": sum(row["arguments"] is not None for row in complete),
        "rows": len(complete),
        "steps": len({row["step"] for row in complete}),
        "skipped": {},
        "monitor_ns": 1_500_000,
        "wait_ns": 20_000,
        "writes": sum(row["arguments"] is not None and row["mutation"] != "none" for row in complete),
        **(closing or {}),
    }
    known = {**METADATA, **(metadata or {})}
    return write_texts(
        path,
        complete,
        json.dumps(known),
        json.dumps(statement) if closed else None,
        sealed=str(known["format"]).split(".") >= ["1", "2"],  # since then every batch has a checksum
        schema=schema,
        batch_rows=batch_rows,
    )


def write_texts(
    path: Path,
    rows: Sequence[Mapping[str, Any]],
    metadata: str,
    closing: str | None,
    *,
    sealed: bool = True,
    schema: pa.Schema = SCHEMA,
    batch_rows: int = 4,
) -> Path:
    """Write whole rows with these texts as the metadata and the closing statement, whatever they say."""
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    number = -1
    with (
        pa.OSFile(str(path), "wb") as sink,
        pa.ipc.new_file(sink, schema.with_metadata({METADATA_KEY: metadata}), options=options) as writer,
    ):
        for number, start in enumerate(range(0, len(rows), batch_rows)):
            words = _unsealed(number) if sealed else None
            writer.write_batch(_batch(rows[start : start + batch_rows], schema), custom_metadata=words)
        if closing is not None:
            words = {CLOSING_KEY: closing.encode(), **(_unsealed(number + 1) if sealed else {})}
            writer.write_batch(_batch([], schema), custom_metadata=words)
    return seal(path) if sealed else path


def seal(path: Path) -> Path:
    """Give every batch the checksum of the bytes that the file has now, as `docs/format.md` says."""
    with path.open("rb") as file:
        messages, _ = walk(file)
    data = bytearray(path.read_bytes())
    begin = 0
    for number, message in enumerate(messages[1:]):
        own = data[begin : message.stop]
        digits = own.index(b"xxh3_64:", message.start - begin) + len(b"xxh3_64:")
        own[digits : digits + 16] = b"0" * 16
        found = xxhash.xxh3_64_hexdigest(bytes(own), seed=number).encode()
        data[begin + digits : begin + digits + 16] = found
        begin = message.stop
    path.write_bytes(data)
    return path


def _unsealed(number: int) -> dict[bytes, bytes]:
    return {CHECKSUM_KEY: b"xxh3_64:%016x" % number}


def cut(path: Path, size: int) -> Path:
    """Cut the file to its first `size` bytes, or by `-size` bytes, as a killed process would have left it."""
    path.write_bytes(path.read_bytes()[:size])
    return path


def _batch(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
