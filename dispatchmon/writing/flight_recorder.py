"""
The last N recorded steps, on a disk that does not fill.

Each batch is a small trace of its own in a hidden folder beside the path; those whose steps are all too old are deleted.
Closing joins what is left into one trace. The steps up to the first NaN, and up to the first Inf, that is an origin are never
deleted. Whether one is shows later: steps in which an operator may have made one are kept until they are old enough to be
judged. Of a process that was killed the folder is left, and `open_trace` reads it in the place of the file.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dispatchmon.schema import parts_folder
from dispatchmon.writing.writer import TraceWriter

_ALLOCATORS = r"^aten\.(new_)?(empty(_like|_strided|_permuted)?|resize_|resize_as_)\."
DROPPED = "operators of steps before the last that keep_last keeps"


KINDS = ("nan", "inf")
SHARE = 20  # judging takes at most this part of the time
MOST_IN_VAIN = 8  # times that steps in which something that matters was not finite are judged without a rest
MOST_HELD = 8  # times keep_last steps that wait for a judgement

Judge = Callable[[Path, int], Mapping[str, int] | None]
"""Path of the parts, their bytes -> first step with an origin of each kind; None if that cannot be known."""


@dataclass(frozen=True)
class Part:
    """One batch in a file of its own."""

    path: Path
    steps: tuple[int, ...]
    size: int


class FlightRecorder:
    """
    Writes like a `TraceWriter`, and keeps the last steps only.

    Args:
        path, metadata: as of a `TraceWriter`.
        keep_last: how many steps.
        judge: finds the origins in what there is; None keeps the steps up to the first NaN or Inf that was seen.
    """

    def __init__(self, path: Path, metadata: Mapping[str, Any], keep_last: int, judge: Judge | None = None) -> None:
        self.path, self.metadata, self.keep_last, self.judge = path, metadata, keep_last, judge
        self.folder = parts_folder(path)
        self.holder = TraceWriter(path, metadata)  # holds the place, and keeps others from it
        self.parts: list[Part] = []
        self.steps: deque[int] = deque(maxlen=keep_last)  # the last that were recorded
        self.suspects: dict[str, list[int]] = {what: [] for what in KINDS}  # steps that are not judged yet
        self.kept: dict[str, tuple[int, int]] = {}  # `nan`, `inf` -> first and last step that are kept for good
        self.number = self.size = 0
        self.opened = False
        self.marked: set[int] = set()  # of the suspects, those in which something that matters was not finite
        self.rests_until, self.in_vain = 0.0, 0

    def open(self) -> None:
        """Create the folder, and a file that holds the place."""
        self.holder.open()
        self.folder.mkdir()
        self.opened = True

    def write(self, batch: pa.RecordBatch) -> None:
        """Add a part, and delete those that are too old."""
        part = TraceWriter(self.folder / f"{self.number:09}.arrow", self.metadata)
        self.number += 1
        part.open()
        part.write(batch)
        part.close({"complete": True, "rows": batch.num_rows})
        steps = np.unique(batch.column("step")).tolist()
        self.parts.append(Part(part.path, tuple(steps), part.path.stat().st_size))
        self.steps.extend(step for step in steps if not self.steps or step > self.steps[-1])
        self.size = sum(part.size for part in self.parts)
        self.suspect(batch)
        for old in [part for part in self.parts if not self.keeps(part.steps[0], part.steps[-1])]:
            old.path.unlink()
            self.parts.remove(old)
        self.size = sum(part.size for part in self.parts)

    def keeps(self, first: int, last: int) -> bool:
        """Whether one of these steps is kept."""
        waiting = [self.before(steps[0]) for steps in self.suspects.values() if steps]
        if last >= min([self.steps[0], *waiting]):
            return True
        return any(first <= end and last >= start for start, end in self.kept.values())

    def before(self, step: int) -> int:
        """The first of the steps that are kept with one."""
        known = sorted({each for part in self.parts for each in part.steps if each <= step})
        return known[-self.keep_last :][0] if known else step

    # ------------------------------------------------------------------------------------------------- NaN and Inf
    def suspect(self, batch: pa.RecordBatch) -> None:
        """Note the steps of a batch in which a NaN or Inf may have begun, and judge those that are old enough."""
        for what in KINDS:
            if what in self.kept:
                continue
            if self.judge is None:
                if found := steps_with(batch, what):
                    self.kept[what] = self.before(found[0]), found[0]
                continue
            made, marked = steps_that_made(batch, what)
            self.suspects[what] = sorted({*self.suspects[what], *made, *marked})
            self.marked |= marked
        old = self.steps[0]
        if any(step < old for steps in self.suspects.values() for step in steps):
            self.decide(old)

    def decide(self, old: int) -> None:
        """Judge the steps before this one: what comes after has shown what became of them."""
        start = time.monotonic()
        marked = any(step < old for step in self.marked) and self.in_vain < MOST_IN_VAIN
        if start < self.rests_until and not marked:
            known = sorted({each for part in self.parts for each in part.steps})
            self.forget(known[-MOST_HELD * self.keep_last :][0])
            return
        self.keep_origins(old)
        self.forget(old)
        self.in_vain += marked and not self.kept
        now = time.monotonic()
        self.rests_until = now + SHARE * (now - start)

    def forget(self, old: int) -> None:
        """The steps before this one are suspects no more."""
        self.suspects = {what: [step for step in steps if step >= old] for what, steps in self.suspects.items()}
        self.marked = {step for step in self.marked if step >= old}

    def keep_origins(self, old: int | None = None) -> None:
        """Keep the steps up to the first NaN and the first Inf that is an origin, if it is before `old`, for good."""
        if self.judge is None or not any(self.suspects.values()):
            return
        origins = self.judge(self.path, self.size)
        if origins is None:  # nobody knows: then the first that may be one
            origins = {what: steps[0] for what, steps in self.suspects.items() if steps}
        for what, step in origins.items():
            if what not in self.kept and (old is None or step < old):
                self.kept[what] = self.before(step), step
                self.suspects[what] = []

    def close(self, statement: Mapping[str, Any]) -> Mapping[str, Any]:
        """Join the parts into one trace. If that fails, they stay, and are read in its place."""
        if not self.opened:
            self.holder.abandon()
            return statement
        try:
            return self.put_together(statement)
        finally:
            self.holder.abandon()

    def put_together(self, statement: Mapping[str, Any]) -> Mapping[str, Any]:
        """Put one trace in the place of the parts."""
        self.holder.require_place()
        joined = TraceWriter(self.folder / "joined.part", self.metadata)
        try:
            statement = self.join(joined, statement)
        except BaseException:
            joined.abandon()
            joined.path.unlink(missing_ok=True)
            raise
        joined.path.replace(os.path.realpath(self.path))
        shutil.rmtree(self.folder)
        return statement

    def join(self, joined: TraceWriter, statement: Mapping[str, Any]) -> Mapping[str, Any]:
        """Write what is kept, and a closing statement that counts what is kept."""
        self.keep_origins()
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


def steps_with(batch: pa.RecordBatch, what: str) -> list[int]:
    """The steps in which a NaN or an Inf was counted."""
    steps = batch.column("step").filter(pc.greater(batch.column(what), 0), null_selection_behavior="drop")
    return np.unique(steps).tolist()  # type: ignore[no-any-return]


def steps_that_made(batch: pa.RecordBatch, what: str) -> tuple[set[int], set[int]]:
    """
    The steps in which an operator may have made a NaN or an Inf, and those in which a parameter or its gradient got one.

    It made one if it wrote one and read none, was not told to fill it in, and does not only hand out memory.
    """
    column = batch.column
    output = pc.equal(column("role"), "output").fill_null(False)
    bad = pc.greater(column(what), 0).fill_null(False)
    wrote = pc.and_(bad, output).to_numpy(zero_copy_only=False)
    if not wrote.any():
        return set(), set()
    events, steps = column("event").to_numpy(), column("step").to_numpy()
    read = events[pc.and_(bad, pc.invert(output)).to_numpy(zero_copy_only=False)]
    told = pc.match_substring_regex(column("arguments").fill_null(""), '"-?inf"').to_numpy(zero_copy_only=False)
    filled = events[told] if what == "inf" else np.empty(0, np.int64)
    hands_out = pc.match_substring_regex(column("op"), _ALLOCATORS).to_numpy(zero_copy_only=False)
    made = wrote & ~np.isin(events, read) & ~np.isin(events, filled) & ~hands_out
    matters = pc.and_(column("name").is_valid(), pc.invert(pc.equal(column("phase"), "forward")))
    marked = wrote & matters.to_numpy(zero_copy_only=False)
    return set(np.unique(steps[made]).tolist()), set(np.unique(steps[marked]).tolist())
