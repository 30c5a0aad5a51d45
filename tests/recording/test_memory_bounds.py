"""
What the recorder holds does not grow with the length of a run, whatever is new in every step.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from dispatchmon.writing.converter import Converter

PROGRAM = """
import os, sys, torch
from dispatchmon import DispatchMonitor
from dispatchmon.recording import handover
from dispatchmon.writing import contexts
from dispatchmon.packed.tables import Tables

handover.BATCH_ROWS, Tables.MOST, contexts.MOST_NODES = 2000, 4000, 4000
handover.BATCH_SLOTS = 6000
torch.set_num_threads(1)
page = os.sysconf("SC_PAGE_SIZE")

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * page

x, weight, sizes = torch.ones(70_000), torch.ones(3, requires_grad=True), []
with DispatchMonitor(None, sys.argv[1], quiet=True) as monitor:
    for i in range(60_000):
        x[: i % 50_000 + 1].view(-1) if i % 4 == 0 else x[:2].add(i * 0.25)   # a new shape, a new scalar
        if i % 8 == 0:
            (weight * i).sum().backward()                                      # new nodes of autograd
            exec(f"x[:2].neg()")                                               # new code
            monitor.step()
        if i % 20_000 == 19_999:
            recording = monitor._recording
            converter = recording.sink.converter
            tables = {n: len(c.array) for t in converter.columns.values() for n, c in t.items()}
            sizes.append((resident(), max(tables.values()), len(converter.contexts.packed), len(converter.contexts.nodes)))
for size in sizes:
    print(*size)
"""


@pytest.mark.slow
def test_a_long_run_does_not_grow(tmp_path):
    """Ever new scalars, shapes, steps, autograd nodes and lines of code: tables stay below their bounds, memory is flat."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "trace.arrow")], capture_output=True, text=True, check=True
    )
    sizes = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert len(sizes) == 3
    for resident, table, contexts, nodes in sizes:
        assert table <= 4000 + 2000  # the bound, and what one batch can add
        assert contexts <= 4000
        assert nodes <= 4000
        assert resident - sizes[0][0] < 20_000_000


def test_steps_are_counted_without_remembering_them():
    """The tally of a run has a number of steps, not the steps."""
    tally = Converter(0, 0, ()).tally
    assert (tally.steps, tally.last_step) == (0, -1)
