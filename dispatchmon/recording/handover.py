"""
From the hot path to the sink: whole batches, and copies of what is there when the program stands still.

The hot path appends to two `bytearray`s without a lock: the rows of an event first, the event itself when it is over. So
an event that is there has all its rows, and what it refers to in the tables is older than the event. `take` runs in the
thread that records, between two operators. `copy` runs in the sink's thread at any moment, takes nothing away, and makes
nobody wait: it reads events, then rows, then tables, each in one step under the interpreter lock, and gives up if a
batch was taken meanwhile. The converter leaves out of the next batch what it has seen in a copy.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any

from dispatchmon.attribution.sources import Sources
from dispatchmon.hazards.findings import Hazards
from dispatchmon.operators.plans import Plans
from dispatchmon.packed.batch import Batch
from dispatchmon.packed.events import EventBuffer
from dispatchmon.packed.records import ROW
from dispatchmon.packed.tables import Tables
from dispatchmon.statistics.table import Statistics
from dispatchmon.values.values import Values

BATCH_ROWS = 1 << 15
BATCH_SLOTS = BATCH_ROWS + (1 << 14)  # one operator can see many tensors, and a batch ends only between operators
BATCH_NS = 5_000_000_000  # a batch is handed over after this time, full or not


class Handover:
    """The buffers of one recording, batch after batch."""

    def __init__(
        self,
        buffer: EventBuffer,
        values: Values,
        statistics: Statistics | None,
        tables: Tables,
        hazards: Hazards,
        plans: Plans,
        sources: Sources | None,
    ) -> None:
        self.buffer, self.values, self.statistics, self.tables, self.hazards = (
            buffer,
            values,
            statistics,
            tables,
            hazards,
        )
        self.plans, self.sources = plans, sources
        self.buffer.full = BATCH_ROWS * ROW.size
        self.number = 0  # of the batch that is being filled
        self.taking = False

    def begin(self) -> None:
        """A batch begins to be filled: it is due after a while, full or not."""
        self.buffer.deadline = perf_counter_ns() + BATCH_NS

    def take(self) -> Batch | None:
        """What was recorded since the last batch, which is over with this; None if that is nothing."""
        self.taking = True
        buffer = self.buffer
        if self.statistics is not None:
            self.statistics.settle()
        batch = None
        if buffer.packed or self.hazards.found:
            hazards = self.hazards.pack(buffer.packed, self.values.rows, buffer.next_number)
            digests, undeclared = self.values.take_digests()
            numbered = [(buffer.next_number(), *found) for found in undeclared]
            events, rows = bytes(buffer.packed), bytes(self.values.rows)
            blocks, cells = self.measured()
            batch = Batch(self.number, events, rows, blocks, self.tables.take(), digests, numbered, cells, hazards)
            self.number += 1
        buffer.packed.clear()
        self.values.rows.clear()
        if self.statistics is not None:
            self.statistics.new_block()
        self.taking = False
        self.forget()
        self.begin()
        return batch

    def copy(self) -> Batch | None:
        """The same for another thread, as a copy; None also when it came at the wrong moment."""
        number = self.number
        if self.taking or not self.buffer.packed:
            return None
        events = bytes(self.buffer.packed)
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

    def forget(self) -> None:
        """Tables that grew with the length of the run begin again: memory does not."""
        tables = self.tables
        if tables.literals.size - tables.literals.base > Tables.MOST:
            tables.literals.forget()
            self.plans.forget_arguments()
        if tables.geometries.size - tables.geometries.base > Tables.MOST:
            self.values.geometries.forget()
        if self.sources is not None and tables.sources.size - tables.sources.base > Tables.MOST:
            self.sources.forget()
