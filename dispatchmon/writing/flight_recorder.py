"""
The last N recorded steps, on a disk that does not fill.

Each batch is a small trace of its own in a hidden folder beside the path; those whose steps are all too old are deleted.
Closing joins what is left into one trace. The steps up to the first NaN, and up to the first Inf, are never deleted. Of a
process that was killed the folder is left, and `open_trace` reads it in the place of the file.
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dispatchmon.schema import parts_folder
from dispatchmon.writing.writer import TraceWriter

DROPPED = "operators of steps before the last that keep_last keeps"


@dataclass(frozen=True)
class Part:
    """One batch in a file of its own."""

    path: Path
    first_step: int
    last_step: int
    size: int


class FlightRecorder:
    """Writes like a `TraceWriter`, and keeps the last steps only."""

    def __init__(self, path: Path, metadata: Mapping[str, Any], keep_last: int) -> None:
        self.path, self.metadata, self.keep_last = path, metadata, keep_last
        self.folder = parts_folder(path)
        self.parts: list[Part] = []
        self.steps: deque[int] = deque(maxlen=keep_last)  # the last that were recorded
        self.kept: dict[str, tuple[int, int]] = {}  # `nan`, `inf` -> first and last step that are kept for good
        self.number = self.size = 0
        self.opened = False

    def open(self) -> None:
        """Create the folder, and a file that holds the place."""
        holder = TraceWriter(self.path, self.metadata)
        holder.open()
        holder.abandon()
        self.folder.mkdir()
        self.opened = True

    def write(self, batch: pa.RecordBatch) -> None:
        """Add a part, and delete those that are too old."""
        part = TraceWriter(self.folder / f"{self.number:09}.arrow", self.metadata)
        self.number += 1
        part.open()
        part.write(batch)
        part.close({"complete": True, "rows": batch.num_rows})
        steps = np.unique(batch.column("step"))
        self.parts.append(Part(part.path, int(steps[0]), int(steps[-1]), part.path.stat().st_size))
        known = [*self.steps, *steps[steps > (self.steps[-1] if self.steps else -1)].tolist()]
        for what in ("nan", "inf"):
            if what not in self.kept and (bad := first_step_with(batch, what)) is not None:
                self.kept[what] = [step for step in known if step <= bad][-self.keep_last :][0], bad
        self.steps.extend(known[len(self.steps) :])
        for old in [part for part in self.parts if not self.keeps(part.first_step, part.last_step)]:
            old.path.unlink()
            self.parts.remove(old)
        self.size = sum(part.size for part in self.parts)

    def keeps(self, first: int, last: int) -> bool:
        """Whether one of these steps is kept."""
        if last >= self.steps[0]:
            return True
        return any(first <= end and last >= start for start, end in self.kept.values())

    def close(self, statement: Mapping[str, Any]) -> Mapping[str, Any]:
        """Join the parts into one trace. If that fails, they stay, and are read in its place."""
        if not self.opened:
            return statement
        joined = TraceWriter(self.folder / "joined.part", self.metadata)
        try:
            statement = self.join(joined, statement)
        except BaseException:
            joined.abandon()
            joined.path.unlink(missing_ok=True)
            raise
        joined.path.replace(self.path)
        shutil.rmtree(self.folder)
        return statement

    def join(self, joined: TraceWriter, statement: Mapping[str, Any]) -> Mapping[str, Any]:
        """Write what is kept, and a closing statement that counts what is kept."""
        joined.open()
        totals = dict.fromkeys(("events", "rows", "writes", "steps"), 0)
        last_step = -1
        for batch in self.kept_rows():
            joined.write(batch)
            first = pc.is_valid(batch.column("arguments"))
            steps = np.unique(batch.column("step"))
            totals["events"] += pc.sum(first).as_py()
            totals["rows"] += batch.num_rows
            totals["writes"] += pc.sum(pc.and_(first, pc.not_equal(batch.column("mutation"), "none"))).as_py()
            totals["steps"] += int((steps > last_step).sum())
            last_step = int(steps[-1])
        skipped = dict(statement["skipped"])
        if dropped := statement["events"] - totals["events"]:
            skipped[DROPPED] = dropped
        return joined.close({**statement, **totals, "skipped": skipped, "kept_for_good": self.kept})

    def kept_rows(self) -> Iterator[pa.RecordBatch]:
        """The rows of the steps that are kept, part after part."""
        for part in self.parts:
            with pa.ipc.open_file(pa.OSFile(str(part.path))) as reader:
                for i in range(reader.num_record_batches):
                    batch = reader.get_batch(i)
                    step = batch.column("step").to_numpy()
                    kept = step >= self.steps[0]
                    for start, end in self.kept.values():
                        kept |= (step >= start) & (step <= end)
                    if kept.any():
                        yield batch.filter(pa.array(kept))


def first_step_with(batch: pa.RecordBatch, what: str) -> int | None:
    """The first step in which a NaN or an Inf was counted."""
    steps = batch.column("step").filter(pc.greater(batch.column(what), 0), null_selection_behavior="drop")
    return steps[0].as_py() if len(steps) else None
