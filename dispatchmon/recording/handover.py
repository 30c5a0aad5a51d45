"""
From the hot path to the sink: whole batches, and copies of what is there when the program stands still.

The hot path appends to two `bytearray`s without a lock: the rows of an event first, the event itself when it is over. So
an event that is there has all its rows, and what it refers to in the tables is older than the event. `take` runs in the
thread that records, between two operators. `copy` runs in the sink's thread at any moment, takes nothing away, and makes
nobody wait: it reads events, then rows, then tables, each in one step under the interpreter lock, and gives up if a
batch was taken meanwhile. The converter leaves out of the next batch what it has seen in a copy.
"""

from __future__ import annotations

from typing import Any

from dispatchmon.hazards.findings import Hazards
from dispatchmon.packed.tables import Tables
from dispatchmon.recording.dispatch import RecordingMode
from dispatchmon.statistics.table import Statistics
from dispatchmon.values.values import Values
from dispatchmon.writing.converter import Batch


class Handover:
    """The buffers of one recording, batch after batch."""

    def __init__(
        self, mode: RecordingMode, values: Values, statistics: Statistics | None, tables: Tables, hazards: Hazards
    ) -> None:
        self.mode, self.values, self.statistics, self.tables, self.hazards = mode, values, statistics, tables, hazards
        self.number = 0  # of the batch that is being filled
        self.taking = False

    def take(self) -> Batch | None:
        """What was recorded since the last batch, which is over with this; None if that is nothing."""
        self.taking = True
        if self.statistics is not None:
            self.statistics.settle()
        batch = None
        if self.mode.events or self.hazards.found:
            hazards = self.hazards.pack(self.mode.events, self.values.rows, self.mode.event_of)
            digests, undeclared = self.values.take_digests()
            numbered = [(self.mode.event_of(), *found) for found in undeclared]
            events, rows = bytes(self.mode.events), bytes(self.values.rows)
            blocks, cells = self.measured()
            batch = Batch(self.number, events, rows, blocks, self.tables.take(), digests, numbered, cells, hazards)
            self.number += 1
        self.mode.events.clear()
        self.values.rows.clear()
        if self.statistics is not None:
            self.statistics.new_block()
        self.taking = False
        return batch

    def copy(self) -> Batch | None:
        """The same for another thread, as a copy; None also when it came at the wrong moment."""
        number = self.number
        if self.taking or not self.mode.events:
            return None
        events = bytes(self.mode.events)
        rows = bytes(self.values.rows)
        cells = self.measured()[1]
        blocks = [] if self.statistics is None else self.statistics.copied()
        if blocks is None:
            return None
        batch = Batch(number, events, rows, blocks, self.tables.copy(), dict(self.values.digest_of_rows), cells=cells)
        return None if self.taking or self.number != number else batch

    def measured(self) -> tuple[list[Any], dict[int, bytes]]:
        """What was measured of the values: tables by slot, and where the non-finite elements lie."""
        return ([], {}) if self.statistics is None else (list(self.statistics.blocks), dict(self.statistics.cells))
