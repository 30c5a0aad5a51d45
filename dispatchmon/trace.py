"""
Opening traces: one file or the files of all ranks of one run, complete or cut.

    trace = open_trace("trace.arrow")
    for batch in trace.scan(["event", "op", "nan"]):
        ...

Nothing here loads a whole trace: `Trace.scan` reads one record batch at a time, and of it only the columns asked for.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dispatchmon.errors import DispatchmonError, NotATraceError, TraceNotFoundError, TraceVersionError
from dispatchmon.schema import CLOSING_KEY, FORMAT_MAJOR, FORMAT_MINOR, METADATA_KEY, SCHEMA, parts_folder

Range = tuple[int | None, int | None]  # half-open; None is no end

_MAGIC = b"ARROW1"
_STREAM_START = 8  # the magic, padded: from here an Arrow file reads as an Arrow stream, which needs no footer
_METADATA_TYPES = {"rank": int, "world_size": int, "modules": list, "parameters": list, "settings": dict}
_NO_LOSS = "values not there yet"  # memory that nothing has written: there was no number to miss
_UNREADABLE = (pa.ArrowException, OSError, ValueError, LookupError, MemoryError, OverflowError, EOFError)


@dataclass(frozen=True)
class TraceFile:
    """
    One file of a trace: what one process wrote.

    `metadata` is what was known when the file was opened, `closing` what was known when it was closed (None if it never
    was), both as in `docs/format.md`. `rows` is the number of rows that can be read, None where a closed file does not
    say; `batches` is how many record batches hold them. `parts` are the files that a flight recorder left behind when it
    was killed: they are read in the place of the file itself.
    """

    path: Path
    metadata: Mapping[str, Any]
    closing: Mapping[str, Any] | None
    cut: bool
    rows: int | None
    batches: int
    size: int
    columns: tuple[str, ...]
    parts: tuple[TraceFile, ...] = ()

    @property
    def rank(self) -> int:
        """Rank of the process that wrote the file; 0 without a process group."""
        return int(self.metadata.get("rank") or 0)

    @property
    def world_size(self) -> int:
        """Number of processes in the run; 1 without a process group."""
        return int(self.metadata.get("world_size") or 1)

    @property
    def complete(self) -> bool:
        """Whether the recording ran to its planned end and the file was closed."""
        return not self.cut and self.closing is not None and self.closing.get("complete") is True

    @property
    def skipped(self) -> dict[str, int]:
        """How many of what the trace does not hold, by reason; what was skipped zero times is left out."""
        skipped = (self.closing or {}).get("skipped")
        return {str(k): v for k, v in skipped.items() if v and isinstance(v, int)} if isinstance(skipped, dict) else {}

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader of this file must know before trusting it, one sentence each."""
        name, found = self.path.name, []
        if self.cut:
            why = (self.closing or {}).get("reason") or "the process was killed?"
            where = f"from {parts_folder(self.path).name}" if self.parts else "up to the cut"
            found.append(f"{name} was not closed ({why}): read {_number(self.rows or 0, 'row')} {where}")
        elif self.closing is None:
            found.append(f"{name} has no closing statement: rows may be missing at its end")
        elif not self.complete:
            found.append(f"{name} is incomplete: {self.closing.get('reason') or 'no reason was given'}")
        if lost := [f"{n} {why}" for why, n in self.skipped.items() if not why.startswith(_NO_LOSS)]:
            found.append(f"{name} does not hold everything: {', '.join(lost)}")
        return tuple(found)

    def scan(
        self,
        columns: Sequence[str],
        on_batch: Callable[[], None] = lambda: None,
        within: Mapping[str, Range] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """
        Yield the file's record batches in order, with exactly these columns.

        A column that the file does not have, because an older dispatchmon wrote it, is null. A batch that has no row
        in the ranges `within` is left out, and if the file was closed, nothing else of it is read.

        Raises:
            NotATraceError: a batch is damaged.
        """
        for part in self.parts:
            yield from part.scan(columns, on_batch, within)
        if self.parts:
            return
        present = set(self.columns)
        schema = pa.schema([SCHEMA.field(name) for name in columns])
        wanted = [name for name in columns if name in present]
        read = 0
        with _opened(self.path) as file:
            try:
                for batch in islice(_batches(file, wanted, self.cut, within or {}), self.batches):
                    if batch is None:
                        read += 1
                        on_batch()
                        continue
                    batch.validate(full=True)  # a damaged offset must never reach an engine that trusts it
                    read += 1
                    arrays = [
                        batch.column(f.name) if f.name in present else pa.nulls(batch.num_rows, f.type) for f in schema
                    ]
                    yield pa.RecordBatch.from_arrays(arrays, schema=schema)
                    on_batch()
            except _UNREADABLE as error:
                raise NotATraceError(
                    f"{self.path} is damaged: batch {read + 1} of {self.batches} cannot be read; record it again"
                ) from error
        if read < self.batches:
            raise NotATraceError(f"{self.path} has changed while it was read; run the command again")


@dataclass(frozen=True)
class Trace:
    """A run: the files of its ranks, in order of rank, and what to know before trusting them."""

    files: tuple[TraceFile, ...]
    notes: tuple[str, ...] = ()

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks whose files are here, in order."""
        return tuple(file.rank for file in self.files)

    @property
    def complete(self) -> bool:
        """Whether every rank of the run is here, and each is complete."""
        return not self._missing_ranks and all(file.complete for file in self.files)

    @property
    def rows(self) -> int | None:
        """Number of rows that can be read; None where a file does not say."""
        rows = [file.rows for file in self.files]
        return None if None in rows else sum(r for r in rows if r is not None)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader must know before trusting the trace, one sentence each."""
        found = [*self.notes, *(w for file in self.files for w in file.warnings)]
        if missing := self._missing_ranks:
            named = ", ".join(map(str, missing[:8])) + (", …" if len(missing) > 8 else "")
            plural = "rank is" if len(missing) == 1 else "ranks are"
            found.append(f"{len(missing)} of {self._world_size} {plural} missing: {named}")
        return tuple(found)

    @cached_property
    def _world_size(self) -> int:
        return max(file.world_size for file in self.files)

    @cached_property
    def _missing_ranks(self) -> list[int]:
        return sorted(set(range(self._world_size)) - set(self.ranks))

    def scan(
        self,
        columns: Sequence[str] | None = None,
        *,
        ranks: Collection[int] | None = None,
        within: Mapping[str, Range] | None = None,
        on_progress: Callable[[float], None] | None = None,
    ) -> pa.RecordBatchReader:
        """
        Stream the rows, file after file, each in order of event.

        Args:
            columns: names of the columns to read (default all); the others are not even decompressed.
            ranks: read only the files of these ranks.
            within: leave out the batches that have no row in these ranges, by column. Of those that have one all rows
                come.
            on_progress: called after each batch with the part that is done, from 0 to 1.

        Raises:
            ValueError: there is no such column.
            NotATraceError: a batch is damaged (raised while reading).
        """
        names = SCHEMA.names if columns is None else list(columns)
        if unknown := [name for name in names if name not in SCHEMA.names]:
            raise ValueError(f"a trace has no column {unknown[0]!r}; it has {', '.join(SCHEMA.names)}")
        files = [file for file in self.files if ranks is None or file.rank in ranks]
        total, done = max(1, sum(file.batches for file in files)), 0

        def on_batch() -> None:
            nonlocal done
            done += 1
            if on_progress is not None:
                on_progress(done / total)

        batches = (batch for file in files for batch in file.scan(names, on_batch, within))
        return pa.RecordBatchReader.from_batches(pa.schema([SCHEMA.field(name) for name in names]), batches)


def open_trace(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> Trace:
    """
    Open a trace: one file, or several files or a folder that hold the ranks of one run.

    Raises:
        TraceNotFoundError: there is no such file, or no trace in the folder.
        NotATraceError: a file is not a trace, or is damaged beyond reading.
        TraceVersionError: a newer, incompatible dispatchmon wrote it.
        DispatchmonError: two files claim the same rank, so they are not of one run.
    """
    given = [Path(paths)] if isinstance(paths, str | os.PathLike) else [Path(path) for path in paths]
    if not given:
        raise TraceNotFoundError("no trace was given; name a file or a folder")
    files: list[TraceFile] = []
    notes: list[str] = []
    for path in dict.fromkeys(given):
        if path.is_dir():
            _open_folder(path, files, notes)
        else:
            files.append(_open_file(path))
    files.sort(key=lambda file: file.rank)
    for first, second in zip(files, files[1:], strict=False):
        if first.rank == second.rank:
            raise DispatchmonError(
                f"{first.path} and {second.path} both hold rank {first.rank}, so they are of different runs; "
                "name one of them"
            )
    return Trace(tuple(files), tuple(notes))


def _open_folder(folder: Path, files: list[TraceFile], notes: list[str]) -> None:
    found = 0
    for path in sorted(folder.glob("*.arrow")):
        try:
            files.append(_open_file(path))
            found += 1
        except NotATraceError as error:
            notes.append(f"left out: {error}")
    if not found:
        raise TraceNotFoundError(f"{folder} holds no trace; a trace is a file that ends in .arrow")


def _open_file(path: Path) -> TraceFile:
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
    with _opened(path) as file:
        if not (start := file.read(_STREAM_START)):
            raise NotATraceError(f"{path} is empty, so it is not a trace")
        if not start.startswith(_MAGIC):
            raise NotATraceError(f"{path} is not an Arrow file, so it is not a trace")
        size = file.size()
        try:
            reader = pa.ipc.open_file(file)
        except _UNREADABLE:
            return _open_cut(path, file, size)
        metadata = _read_metadata(path, reader.schema)
        closing = None
        try:
            batches = reader.num_record_batches
            if batches:
                closing = _read_closing(reader.get_batch_with_custom_metadata(batches - 1))
        except _UNREADABLE as error:
            raise NotATraceError(f"{path} is damaged: its end cannot be read; record it again") from error
    rows = closing.get("rows") if closing else None
    rows = rows if isinstance(rows, int) else None
    return TraceFile(path, metadata, closing, False, rows, batches, size, _known_columns(reader.schema))


def _opened(path: Path) -> pa.NativeFile:
    # Not memory-mapped: of a file that shrinks meanwhile that would end the interpreter.
    return pa.OSFile(os.fsencode(path), "rb")


def _open_cut(path: Path, file: pa.NativeFile, size: int) -> TraceFile:
    """Open a file without a footer: read it as a stream, to learn how far it goes."""
    try:
        file.seek(_STREAM_START)
        schema = pa.ipc.open_stream(file).schema
    except _UNREADABLE as error:
        raise NotATraceError(f"{path} is cut or damaged before its first row, so there is nothing to read") from error
    metadata = _read_metadata(path, schema)
    closing, rows, batches = None, 0, 0
    try:
        for item in _stream(file, [_known_columns(schema)[0]]):
            closing = _read_closing(item)
            rows += item.batch.num_rows
            batches += 1
    except _UNREADABLE:
        pass  # here is the cut
    return TraceFile(path, metadata, closing, True, rows, batches, size, _known_columns(schema))


def _stream(file: pa.NativeFile, columns: Sequence[str]) -> Iterator[Any]:
    """Yield the batches of an Arrow file in turn, without its footer, each with its custom metadata."""
    file.seek(_STREAM_START)
    schema = pa.ipc.open_stream(file).schema
    file.seek(_STREAM_START)
    reader = pa.ipc.open_stream(file, options=_only(schema, columns))
    while True:
        try:
            yield reader.read_next_batch_with_custom_metadata()
        except StopIteration:
            return


def _batches(
    file: pa.NativeFile, columns: Sequence[str], cut: bool, within: Mapping[str, Range]
) -> Iterator[pa.RecordBatch | None]:
    """Yield each batch with these columns, or None in the place of one that has no row in the ranges."""
    if cut:
        yield from (item.batch for item in _stream(file, columns))
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
        if len(found) > 1 or (not found and (minor >= FORMAT_MINOR or field.name == "event")):
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


def _number(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
