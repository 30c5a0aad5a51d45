"""
One file of a trace: what one process wrote, complete or cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from dispatchmon.errors import NotATraceError
from dispatchmon.reading.batches import UNREADABLE, Range, batches, opened
from dispatchmon.schema import SCHEMA, parts_folder

_NO_LOSS = "values not there yet"  # memory that nothing has written: there was no number to miss


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
        with opened(self.path) as file:
            try:
                for batch in islice(batches(file, wanted, self.cut, within or {}), self.batches):
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
            except UNREADABLE as error:
                raise NotATraceError(
                    f"{self.path} is damaged: batch {read + 1} of {self.batches} cannot be read; record it again"
                ) from error
        if read < self.batches:
            raise NotATraceError(f"{self.path} has changed while it was read; run the command again")


def _number(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
