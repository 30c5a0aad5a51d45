"""What is counted while a trace is written: for the closing statement and the closing line."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatchmon.packed import records as r
from dispatchmon.writing.columns import Ints

REASONS = {
    r.UNSUPPORTED: "values of a kind that has no statistics",
    r.UNREADY: "values not there yet (memory that was not written)",
    r.IN_FLIGHT: "results of collectives that were still in flight",
    r.UNTIL_WAIT: "results of collectives that were still in flight",
    r.SCRATCH: "scratch memory of kernels",
    r.TABLE_FULL: "values beyond the statistics table of a batch",
    r.FAILED: "values whose measurement failed",
}


@dataclass
class Tally:
    """What the closing statement and the closing line say."""

    events: int = 0
    rows: int = 0
    writes: int = 0
    hazards: int = 0  # findings of the audit
    undeclared: int = 0  # values that changed though no operator wrote them
    values: int = 0  # rows that show a tensor
    skipped: dict[str, int] = field(default_factory=dict)
    steps: int = 0
    last_step: int = -1
    first_nonfinite: dict[str, Any] | None = None

    def skip(self, reason: str, how_many: int = 1) -> None:
        if how_many:
            self.skipped[reason] = self.skipped.get(reason, 0) + how_many

    def copy(self) -> Tally:
        return replace(self, skipped=dict(self.skipped))

    def count(
        self, batch: pa.RecordBatch, event: Ints, slot: Ints, seen: npt.NDArray[np.bool_], columns: dict[str, Any]
    ) -> None:
        """Add a batch of rows: `seen` says which show a tensor, `columns` has them by name before they became a batch."""
        self.events += len(event)
        self.rows += batch.num_rows
        new_steps = np.unique(columns["step"])
        new_steps = new_steps[new_steps > self.last_step]  # steps never go back
        if len(new_steps):
            self.steps, self.last_step = self.steps + len(new_steps), int(new_steps[-1])
        self.values += int(seen.sum())
        first = columns["arguments"].is_valid()
        writes = pc.and_(first, pc.not_equal(columns["mutation"], "none"))
        self.writes += writes.true_count
        for reason, words in REASONS.items():
            self.skip(words, int((seen & (slot == reason)).sum()))
        if self.first_nonfinite is None:
            for name in ("nan", "inf"):
                hits = np.flatnonzero(columns[name].fill_null(0).to_numpy(zero_copy_only=False))
                if len(hits) and (self.first_nonfinite is None or hits[0] < self.first_nonfinite["row"]):
                    row = batch.slice(int(hits[0]), 1).to_pylist()[0]
                    self.first_nonfinite = {**row, "row": int(hits[0])}
