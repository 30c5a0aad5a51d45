"""
One file of a trace: what one process wrote, complete or cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from dispatchmon.errors import NotATraceError
from dispatchmon.reading.batches import UNREADABLE, BatchReader
from dispatchmon.reading.contents import Contents, Test, Within
from dispatchmon.reading.messages import Damaged
from dispatchmon.reading.validation import Validator
from dispatchmon.schema import CHECKSUM_KEY, CHECKSUM_MINOR, FORMAT_MINOR, SCHEMA, parts_folder

_NO_LOSS = ("values not there yet", "scratch memory of kernels")  # that nothing has written: there was no number to miss


@dataclass(frozen=True)
class TraceFile:
    """
    One file of a trace: what one process wrote.

    `metadata` is what was known when the file was opened, `closing` what was known when it was closed (None if it never
    was), both as in `docs/format.md`. `rows` is the number of rows that can be read, None where a closed file does not
    say; `batches` is how many record batches hold them. `parts` are the files that a flight recorder left behind when it
    was killed: they are read in the place of the file itself. `contents` is what is known of the batches that were read
    already.
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
    contents: dict[int, Contents] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def rank(self) -> int:
        """Rank of the process that wrote the file; 0 without a process group."""
        return int(self.metadata.get("rank") or 0)

    @cached_property
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
        within: Within | None = None,
        test: Test | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """
        Yield the file's record batches in order, with exactly these columns.

        A column that the file does not have, because an older dispatchmon wrote it, is null. A batch that has no row
        `within` what is asked for is left out: if that is known from an earlier scan, nothing of it is read. So is one
        that nobody needs, by a test of columns that the file has.

        Raises:
            NotATraceError: a batch is damaged.
        """
        for part in self.parts:
            yield from part.scan(columns, on_batch, within, test)
        if self.parts:
            return
        present = set(self.columns)
        schema = pa.schema([SCHEMA.field(name) for name in columns])
        wanted = [name for name in columns if name in present] or [self.columns[0]]
        asked = {name: wanted for name, wanted in (within or {}).items() if name in present}
        minor = version_of(self.metadata)[1]
        validator = Validator(known=minor <= FORMAT_MINOR)
        together = frozenset(wanted)
        number = rows = 0
        whole = True  # every batch was read, none left out
        try:
            with BatchReader(self.path) as reader:
                if len(reader) < self.batches or reader.schema.metadata is None:
                    raise _Changed
                for number in range(self.batches):
                    contents = self.contents.setdefault(number, Contents())
                    if not contents.may_hold(asked):
                        whole = False
                        on_batch()
                        continue
                    batch, words = reader.read(
                        number, wanted, asked, contents, checked=minor >= CHECKSUM_MINOR, test=test
                    )
                    whole = whole and batch is not None
                    if batch is not None:
                        contents.learn(batch, words.get(CHECKSUM_KEY))
                        if not contents.is_checked(wanted):
                            validator.check(batch, contents)
                            contents.checked.append(together)
                        rows += batch.num_rows
                        arrays = [
                            batch.column(f.name) if f.name in present else pa.nulls(batch.num_rows, f.type)
                            for f in schema
                        ]
                        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
                    on_batch()
        except _Changed:
            raise NotATraceError(f"{self.path} has changed while it was read; run the command again") from None
        except UNREADABLE as error:
            reason = f": {error}" if isinstance(error, Damaged) else ""
            raise NotATraceError(
                f"{self.path} is damaged: batch {number + 1} of {self.batches} cannot be read{reason}; record it again"
            ) from error
        if whole and self.closing is not None and self.rows not in (None, rows):
            raise NotATraceError(
                f"{self.path} is damaged: it says that it has {_number(self.rows or 0, 'row')}, and has {rows}; record it again"
            )


class _Changed(Exception):
    """The file is not the one that was opened."""


def version_of(metadata: Mapping[str, Any]) -> tuple[int, int]:
    """
    The (major, minor) version of the format.

    Raises:
        ValueError: that is no version.
    """
    major, minor = (int(part) for part in str(metadata["format"]).split("."))
    return major, minor


def _number(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
