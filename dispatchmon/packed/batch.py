"""What is handed from the thread that records to the thread that writes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass
class Batch:
    """Packed records, the tables of statistics that they refer to, and what is new in the tables of what numbers mean."""

    number: int
    events: bytes  # see EVENT of records.py
    rows: bytes  # see ROW
    blocks: list[tuple[int, npt.NDArray[np.float64]]]  # (first slot, table of statistics)
    tables: dict[str, Any]
    digests: dict[int, int] = field(default_factory=dict)  # by number of the row
    undeclared: list[tuple[int, int, int, int]] = field(
        default_factory=list
    )  # event, event before, event after, storage
    cells: dict[int, bytes] = field(default_factory=dict)  # by slot: where non-finite elements lie
    hazards: dict[int, tuple[int, int]] = field(default_factory=dict)  # by event: event that wrote, event of the victim
