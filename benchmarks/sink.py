"""
What the sink does with a real trace: rows per second through to the closed file, bytes per row, extra memory.

    python benchmarks/sink.py [--write docs/performance.md]

The batches of a recording are kept, then converted, compressed and written once more by themselves, in this thread.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from overhead import machine, replaced
from workloads import WORKLOADS, Workload

from dispatchmon import DispatchMonitor
from dispatchmon.recording import assembly as recording
from dispatchmon.schema import STATISTICS
from dispatchmon.sink import Sink
from dispatchmon.writing.converter import Converter
from dispatchmon.writing.writer import TraceWriter

FOLDER = Path(tempfile.mkdtemp())
STEPS = {"tiny MLP": 2000, "ResNet-18, CIFAR, in-place ReLU": 12, "transformer, 4 layers, d=256, 8 × 128": 12}


class Kept(Sink):
    """A sink that keeps what comes."""

    batches: list[Any]

    def put(self, batch: Any) -> None:
        self.batches.append(batch)
        super().put(batch)


def measured(workload: Workload) -> str:
    """A line of the table."""
    model, step = workload.make()
    batches: list[Any] = []
    Kept.batches = batches
    recording.Sink, before = Kept, recording.Sink  # type: ignore[misc]
    try:
        with DispatchMonitor(model, FOLDER / "first.arrow", overwrite=True, quiet=True):
            for _ in range(STEPS[workload.name]):
                step()
    finally:
        recording.Sink = before  # type: ignore[misc]
    best = float("inf")
    for _ in range(3):
        converter, file = Converter(0, 0, STATISTICS), TraceWriter(FOLDER / "again.arrow", {})
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.process_time()
        file.open()
        for batch in batches:
            file.write(converter.convert(batch))
        file.close({"complete": True})
        best = min(best, time.process_time() - start)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
    rows, size = converter.tally.rows, (FOLDER / "again.arrow").stat().st_size
    return f"| {workload.name} | {rows:,} | {rows / best / 1e3:,.0f} | {size / rows:.1f} | {grown / 1024:.0f} MB |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="replace this section of a Markdown file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = [
        f"{machine()}.",
        "",
        "| a trace of | rows | thousand rows per CPU second | bytes per row | peak memory grew by |",
        "|---|---:|---:|---:|---:|",
    ]
    lines += [measured(workload) for workload in WORKLOADS if workload.name in STEPS]
    print("\n".join(lines))
    if options.write is not None:
        replaced(options.write, "sink", "\n".join(lines))


if __name__ == "__main__":
    main()
