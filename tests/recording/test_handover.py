"""
What reaches the file while the program records, stands still, or is inside one long operator: each event once, and whole.
"""

from __future__ import annotations

import sys
import time

import pytest
import torch
from torch import nn

from dispatchmon import DispatchMonitor
from dispatchmon.recording import handover
from dispatchmon.trace import open_trace
from recorded import rows_of, until

VARIABLE = {"start_ns", "duration_ns", "storage"}  # from run to run


def on_disk(path, column):
    """This column of what a reader finds while the program goes on."""
    return open_trace(path).scan([column]).read_all()[column].to_pylist()


def train(steps):
    """A small network with in-place writes, gradients, and an optimizer with states."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.BatchNorm1d(8), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)

    def run():
        for i in range(steps):
            optimizer.zero_grad()
            (model(torch.randn(3 + i % 5, 4)) * (i * 0.5)).sum().backward()
            optimizer.step()

    return model, run


def recorded(path, steps=3, **settings):
    model, run = train(steps)
    with DispatchMonitor(model, path, quiet=True, **settings) as monitor:
        run()
    assert monitor.error is None, monitor.error
    return rows_of(path)


def comparable(rows):
    """
    The rows without what differs from run to run; storages by order of appearance.

    An optimizer's states have names once its first step is over; which rows of that step still get them is a matter of
    when a batch ended.
    """
    order = {}
    return [
        {k: v for k, v in row.items() if k not in VARIABLE and (row["step"], k) != (0, "name")}
        | {"storage": order.setdefault(row["storage"], len(order))}
        for row in rows
    ]


@pytest.mark.slow
def test_small_batches_and_copies_change_nothing(tmp_path, monkeypatch):
    """Cut into many batches, and copied while operators run, a trace has the same rows as one from a single batch."""
    whole = recorded(tmp_path / "whole.arrow", steps=30)
    monkeypatch.setattr(handover, "BATCH_ROWS", 700)
    monkeypatch.setattr(handover, "BATCH_NS", 1_000_000)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        cut = recorded(tmp_path / "cut.arrow", steps=30)
    finally:
        sys.setswitchinterval(interval)
    assert len({row["event"] for row in cut}) > 1000
    assert comparable(cut) == comparable(whole)


@pytest.mark.parametrize("verify", [False, True])
def test_an_idle_program_is_written_after_one_interval(tmp_path, monkeypatch, verify):
    """What was recorded before the program stood still is on disk, and is not written again later."""
    monkeypatch.setattr(handover, "BATCH_NS", 50_000_000)
    path, x = tmp_path / "trace.arrow", torch.ones(2)
    with DispatchMonitor(None, path, quiet=True, verify_values=verify):
        for _ in range(10):
            x.add(1.5)
        until(lambda: len(on_disk(path, "event")) >= 20)
        time.sleep(0.15)  # further intervals, in which nothing is to be written
        assert on_disk(path, "event") == [i // 2 for i in range(20)]
        for _ in range(10):
            x.add(2.5)
    rows = rows_of(path)
    assert [row["event"] for row in rows] == [i // 2 for i in range(40)]
    assert [row["arguments"] for row in rows[::2]] == ['{"other": 1.5}'] * 10 + ['{"other": 2.5}'] * 10


def test_a_long_operator_does_not_keep_back_what_came_before(tmp_path, monkeypatch):
    """Inside one long operator what came before it is on disk; the operator follows when it is over, once."""
    monkeypatch.setattr(handover, "BATCH_NS", 50_000_000)
    path, seen = tmp_path / "trace.arrow", []

    @torch.library.custom_op("dispatchmon_tests::slow", mutates_args=())
    def slow(x: torch.Tensor) -> torch.Tensor:
        until(lambda: len(on_disk(path, "op")) >= 4)
        seen.extend(on_disk(path, "op"))
        return x + 1

    x = torch.ones(2)
    with DispatchMonitor(None, path, quiet=True):
        x.exp()
        x.exp()
        slow(x)
        x.exp()
    assert seen == ["aten.exp.default"] * 4
    ops = [row["op"] for row in rows_of(path)]
    assert ops == ["aten.exp.default"] * 4 + ["dispatchmon_tests.slow.default"] * 2 + ["aten.exp.default"] * 2


def test_an_undeclared_write_is_found_after_a_copy(tmp_path, monkeypatch):
    """A value that changed unseen is reported although the row that noticed it was written from a copy."""
    monkeypatch.setattr(handover, "BATCH_NS", 50_000_000)
    path, x = tmp_path / "trace.arrow", torch.ones(2)
    memory = x.numpy()
    with DispatchMonitor(None, path, quiet=True, verify_values=True):
        x.exp()
        memory[0] = 3
        x.exp()
        until(lambda: len(on_disk(path, "event")) >= 4)
        x.exp()
    (hazard,) = [row for row in rows_of(path) if row["kind"] == "hazard"]
    assert (hazard["forward_event"], hazard["cause_event"], hazard["mutation"]) == (0, 1, "undeclared")
