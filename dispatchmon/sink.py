"""
Batches to a trace, off the hot path.

A thread converts, compresses and writes; the queue before it is bounded, so when the disk is slower than the model the
loop waits and memory does not grow. When nothing at all is written for a minute, recording stops and the loop goes on. When
no batch has come for an interval, because the program stands still or is inside one long operator, the thread takes a copy
of what there is and writes that. Whatever goes wrong here is kept in `error`: it never reaches the training loop.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from time import perf_counter_ns
from typing import Any, Protocol

import pyarrow as pa

from dispatchmon.errors import TraceInUseError
from dispatchmon.packed.batch import Batch
from dispatchmon.packed.records import EVENT
from dispatchmon.writing.converter import Converter

QUEUED = 2  # batches that may wait
PATIENCE = 60  # seconds for which the loop waits for a disk that takes nothing
LOST = "operators that could not be written"
BEYOND = "operators after max_bytes was reached"


class Writer(Protocol):
    """What a sink writes to: one file, or the files of a flight recorder."""

    size: int

    def open(self) -> None: ...
    def write(self, batch: pa.RecordBatch) -> None: ...
    def close(self, statement: Mapping[str, Any]) -> Mapping[str, Any]: ...


class Sink:
    """One trace, and the thread that fills it."""

    def __init__(
        self,
        writer: Writer,
        converter: Converter,
        copy: Callable[[], Batch | None],
        interval: float,
        max_bytes: int | None = None,
    ) -> None:
        self.writer, self.converter, self.copy = writer, converter, copy
        self.interval, self.max_bytes = interval, max_bytes  # seconds; size at which to stop
        self.error: BaseException | None = None
        self.stopped: str | None = None  # why nothing more is recorded, though nothing went wrong
        self.waited = 0  # ns that the training loop waited for a free place in the queue
        self.done = 0  # batches that were taken off the queue and written, or lost
        self.seen = 0  # how many of them when somebody last waited
        self.seconds = 0  # for how long they have not become more while somebody waited
        self.left = False  # the thread was left behind with a disk that stands still
        self.largest = 0  # bytes of a batch in the file
        self.closed: Mapping[str, Any] = {}  # the closing statement, as it was written
        self.queue: queue.Queue[Batch | None] = queue.Queue(QUEUED)
        self.thread = threading.Thread(target=self.work, name="dispatchmon-sink", daemon=True)

    @property
    def over(self) -> bool:
        """Whether what is recorded from now on is lost."""
        return self.error is not None or self.stopped is not None

    # ------------------------------------------------------------------------------------------------- training loop
    def open(self) -> None:
        """
        Create the file and start the thread.

        Raises:
            TraceInUseError: another monitor is writing the file.
        """
        try:
            self.writer.open()
            self.thread.start()
        except TraceInUseError:
            raise
        except Exception as error:
            self.error = error

    def put(self, batch: Batch) -> None:
        """Hand a batch over; waits while the queue is full."""
        start = perf_counter_ns()
        if not self.enqueue(batch):
            self.lose(batch)
        self.waited += perf_counter_ns() - start

    def enqueue(self, batch: Batch | None) -> bool:
        """Put into the queue as soon as there is a place; False if none will come."""
        while self.thread.is_alive():  # nobody waits for a thread that is gone
            try:
                self.queue.put(batch, timeout=1)
                return True
            except queue.Full:
                if self.stands_still():
                    return False
        return False

    def stands_still(self) -> bool:
        """One more second was waited. Whether nothing was written for too many: seconds of a stopped process do not count."""
        self.seconds = self.seconds + 1 if self.done == self.seen else 1
        self.seen = self.done
        if self.seconds < PATIENCE:
            return False
        self.error = self.error or TimeoutError(f"nothing was written for {PATIENCE} seconds")
        return True

    def lose(self, batch: Batch) -> None:
        """Count what a batch would have added."""
        self.converter.tally.skip(LOST if self.error else BEYOND, len(batch.events) // EVENT.size)

    def close(self, closing: dict[str, Any]) -> None:
        """Write what is queued and the closing statement, and close the file; one that takes nothing is left open."""
        self.enqueue(None)
        while self.thread.is_alive():
            self.thread.join(1)
            if self.thread.is_alive() and self.stands_still():
                self.left = True  # it may still write, so the file is left to it
                return
        while not self.queue.empty():  # the thread is gone
            if (batch := self.queue.get()) is not None:
                self.lose(batch)
        try:
            self.closed = self.writer.close(self.statement(closing))
        except Exception as error:
            self.error = self.error or error

    def statement(self, closing: dict[str, Any]) -> dict[str, Any]:
        """The closing statement; what went wrong comes before why the loop ended."""
        tally = self.converter.tally
        failed = None if self.error is None else f"{type(self.error).__name__}: {self.error}"
        reason = failed or self.stopped or closing["reason"]
        if self.over:  # the step in which it stopped is there in part
            tally.skip("steps after recording stopped", max(0, closing["step"] - 1 - tally.last_step))
        return {
            "complete": reason is None,
            "reason": reason,
            "events": tally.events,
            "rows": tally.rows,
            "writes": tally.writes,
            "undeclared_writes": tally.undeclared,
            "hazards": tally.hazards,
            "steps": tally.steps,
            "skipped": {**tally.skipped, **closing["skipped"]},
            "monitor_ns": closing["monitor_ns"],
            "wait_ns": self.waited,
        }

    # ------------------------------------------------------------------------------------------------- own thread
    def work(self) -> None:
        try:
            while (batch := self.next_batch()) is not None:
                if not self.over:
                    self.write(batch)
                else:
                    self.lose(batch)
                self.done += 1
        except BaseException as error:  # the thread must not end without a word
            self.error = self.error or error

    def next_batch(self) -> Batch | None:
        """The next batch of the queue; while none comes, copies are written."""
        while True:
            try:
                return self.queue.get(timeout=self.interval)
            except queue.Empty:
                if self.left:
                    return None
                if not self.over and (copied := self.copy()) is not None:
                    self.write(copied, copied=True)

    def write(self, batch: Batch, copied: bool = False) -> None:
        """Convert and write; count only what is in the file."""
        before = self.converter.tally.copy()
        try:
            convert = self.converter.convert_copy if copied else self.converter.convert
            if (rows := convert(batch)) is not None:
                size = self.writer.size
                self.writer.write(rows)
                self.largest = max(self.largest, self.writer.size - size)
        except BaseException as error:
            self.error = error
            self.converter.tally = before
            if not copied:  # of a copy, the batch itself is still to come
                self.lose(batch)
            return
        if self.max_bytes is not None and self.writer.size + self.largest > self.max_bytes:
            self.stopped = f"max_bytes={self.max_bytes} was reached in step {self.converter.tally.last_step}"
