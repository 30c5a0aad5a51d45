"""
Batches to a file, off the hot path.

A thread converts, compresses and writes; the queue before it is bounded, so when the disk is slower than the model the
loop waits and memory does not grow. Whatever goes wrong here is kept in `error`: it never reaches the training loop.
"""

from __future__ import annotations

import json
import queue
import threading
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import pyarrow as pa

from dispatchmon.batches import Batch, Converter
from dispatchmon.schema import CLOSING_KEY, METADATA_KEY, SCHEMA

QUEUED = 2  # batches that may wait


class Sink:
    """One trace file, and the thread that fills it."""

    def __init__(self, path: Path, metadata: dict[str, Any], converter: Converter) -> None:
        self.path, self.metadata, self.converter = path, metadata, converter
        self.error: BaseException | None = None
        self.waited = 0  # ns that the training loop waited for a free place in the queue
        self.writer: Any = None
        self.queue: queue.Queue[Batch | None] = queue.Queue(QUEUED)
        self.thread = threading.Thread(target=self.work, name="dispatchmon-sink", daemon=True)

    def open(self) -> None:
        """Create the file and start the thread. An `OSError` is kept in `error`."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.writer = pa.ipc.new_file(
                str(self.path),
                SCHEMA.with_metadata({METADATA_KEY: json.dumps(self.metadata)}),
                options=pa.ipc.IpcWriteOptions(compression="zstd"),
            )
        except (OSError, pa.ArrowException) as error:
            self.error = error
            return
        self.thread.start()

    def put(self, batch: Batch) -> None:
        """Hand a batch over; waits while the queue is full."""
        if self.error is not None:
            return
        start = perf_counter_ns()
        self.queue.put(batch)
        self.waited += perf_counter_ns() - start

    def work(self) -> None:
        while (batch := self.queue.get()) is not None:
            if self.error is None:
                try:
                    self.writer.write_batch(self.converter.convert(batch))
                except Exception as error:
                    self.error = error

    def close(self, closing: dict[str, Any]) -> None:
        """Write what is queued and the closing statement, and close the file."""
        if self.writer is None:
            return
        if self.thread.is_alive():
            self.queue.put(None)
            self.thread.join()
        tally = self.converter.tally
        statement = {
            "complete": self.error is None and closing["reason"] is None,
            "reason": closing["reason"] if self.error is None else f"{type(self.error).__name__}: {self.error}",
            "events": tally.events,
            "rows": tally.rows,
            "writes": tally.writes,
            "undeclared_writes": tally.undeclared,
            "hazards": tally.hazards,
            "steps": len(tally.steps),
            "skipped": {**tally.skipped, **closing["skipped"]},
            "monitor_ns": closing["monitor_ns"],
            "wait_ns": self.waited,
        }
        try:
            empty = pa.RecordBatch.from_pylist([], schema=SCHEMA)
            self.writer.write_batch(empty, custom_metadata={CLOSING_KEY: json.dumps(statement)})
            self.writer.close()
        except Exception as error:
            self.error = self.error or error
