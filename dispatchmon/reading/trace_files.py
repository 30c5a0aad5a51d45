"""
The files of a run: one, or those of all its ranks, complete or cut.

Nothing here loads a whole trace: `TraceFiles.scan` reads one record batch at a time, and of it only the columns asked for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

import pyarrow as pa

from dispatchmon.errors import DispatchmonError, NotATraceError, TraceNotFoundError
from dispatchmon.reading.contents import Test, Within
from dispatchmon.reading.opening import open_file
from dispatchmon.reading.trace_file import TraceFile
from dispatchmon.schema import SCHEMA

_NAMED = 8  # missing ranks that are named

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


@dataclass(frozen=True)
class TraceFiles:
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
        return not self._missing and all(file.complete for file in self.files)

    @property
    def rows(self) -> int | None:
        """Number of rows that can be read; None where a file does not say."""
        rows = [file.rows for file in self.files]
        return None if None in rows else sum(r for r in rows if r is not None)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader must know before trusting the trace, one sentence each."""
        found = [*self.notes, *(w for file in self.files for w in file.warnings)]
        if missing := self._missing:
            here = set(self.ranks)
            named = [str(rank) for rank in islice((r for r in range(self._world_size) if r not in here), _NAMED)]
            more = ", …" if missing > _NAMED else ""
            plural = "rank is" if missing == 1 else "ranks are"
            found.append(f"{missing} of {self._world_size} {plural} missing: {', '.join(named)}{more}")
        return tuple(found)

    @cached_property
    def _world_size(self) -> int:
        return max(file.world_size for file in self.files)

    @cached_property
    def _missing(self) -> int:
        """How many ranks are not here. The number of ranks is what a file says: nothing is sized by it."""
        return self._world_size - sum(rank < self._world_size for rank in self.ranks)

    def scan(
        self,
        columns: Sequence[str] | None = None,
        *,
        ranks: Collection[int] | None = None,
        within: Within | None = None,
        test: Test | None = None,
        on_progress: Callable[[float], None] | None = None,
    ) -> pa.RecordBatchReader:
        """
        Stream the rows, file after file, each in order of event.

        Args:
            columns: names of the columns to read (default all); the others are not even decompressed.
            ranks: read only the files of these ranks.
            within: leave out the batches that have no row with such values, by column: in a range, one of some words of
                the format, one of some sorted numbers. Of those that have one all rows come.
            test: leave out the batches that nobody needs as well, by a test of columns that every trace has.
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

        batches = (batch for file in files for batch in file.scan(names, on_batch, within, test))
        return pa.RecordBatchReader.from_batches(pa.schema([SCHEMA.field(name) for name in names]), batches)


def open_files(paths: Paths) -> TraceFiles:
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
            files.append(open_file(path))
    files.sort(key=lambda file: file.rank)
    for first, second in zip(files, files[1:], strict=False):
        if first.rank == second.rank:
            raise DispatchmonError(
                f"{first.path} and {second.path} both hold rank {first.rank}, so they are of different runs; "
                "name one of them"
            )
    return TraceFiles(tuple(files), tuple(notes))


def _open_folder(folder: Path, files: list[TraceFile], notes: list[str]) -> None:
    found = 0
    for path in sorted(folder.glob("*.arrow")):
        try:
            files.append(open_file(path))
            found += 1
        except NotATraceError as error:
            notes.append(f"left out: {error}")
    if not found:
        raise TraceNotFoundError(f"{folder} holds no trace; a trace is a file that ends in .arrow")
