"""Statistics that are computed where a value lies and fetched later: the same rows, nothing waited for, the same alarm."""

from __future__ import annotations

import math
import subprocess
import sys

import pyarrow as pa
import pytest
import torch
from torch import nn

from dispatchmon import DispatchMonitor, NonFiniteError, open_trace
from dispatchmon.memory.cells import runs_of
from dispatchmon.packed import totals as reductions
from dispatchmon.statistics.deferred import Deferred, merged, of_piece
from dispatchmon.statistics.layout import layout_of
from dispatchmon.statistics.table import Statistics
from recorded import STATISTICS, rows_of

OF_THE_RUN = {"start_ns", "duration_ns", "storage", "cells", *STATISTICS}


@pytest.fixture
def deferring(monkeypatch):
    monkeypatch.setenv("DISPATCHMON_STATISTICS", "deferred")


def trained(path, steps=3, bad_at=None, **settings):
    """A small training run with in-place operators, views, several dtypes and an optimizer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(144, 3))
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = torch.randn(5, 1, 8, 8), torch.randint(0, 3, (5,))
    with DispatchMonitor(model, path, quiet=True, overwrite=True, **settings) as monitor:
        for step in range(steps):
            optimizer.zero_grad()
            out = model(x).half().float()
            if step == bad_at:
                out = (out - out.amax(1, keepdim=True)).log()
            nn.functional.cross_entropy(out, y).backward()
            optimizer.step()
    assert monitor.error is None
    return model


def comparable(rows):
    """What must be the same in two runs; storages by the order in which they appear."""
    serials: dict = {}
    return [
        {k: v for k, v in row.items() if k not in OF_THE_RUN} | {"storage": serials.setdefault(row["storage"], len(serials))}
        for row in rows
    ]


@pytest.mark.parametrize("settings", [{}, {"record": ("ops", "modules", "parameters")}], ids=["ops", "everything"])
@pytest.mark.parametrize("backend", ["deferred", "torch"])
def test_the_rows_are_those_of_the_kernel(backend, settings, tmp_path, monkeypatch):
    """Counts and extremes exactly, sums as closely as float64 allows: also of NaN and Inf, which come in the second step."""
    trained(tmp_path / "direct.arrow", bad_at=1, **settings)
    monkeypatch.setenv("DISPATCHMON_STATISTICS", backend)
    trained(tmp_path / "deferred.arrow", bad_at=1, **settings)
    direct, deferred = rows_of(tmp_path / "direct.arrow"), rows_of(tmp_path / "deferred.arrow")
    assert comparable(direct) == comparable(deferred)
    assert sum(row["nan"] or 0 for row in direct) > 0
    for one, other in zip(direct, deferred, strict=True):
        for name in STATISTICS:
            if one[name] is None or name in ("nan", "inf", "posinf", "zero", "min", "max"):
                assert one[name] == other[name], (one, other)
            else:
                assert other[name] == pytest.approx(one[name], rel=1e-6, abs=1e-6 * max(abs(one["min"]), abs(one["max"])))


@pytest.mark.slow
@pytest.mark.usefixtures("deferring")
def test_nothing_is_asked_of_a_tensor_until_the_step_ends(tmp_path, monkeypatch):
    """No number leaves a tensor while operators run; one transfer for each step and one for what follows the last."""
    fetches, asked = [], []
    fetch = Deferred.fetch

    def noted(self, *into):
        fetches.append(len(self.slots))
        return fetch(self, *into)

    monkeypatch.setattr(Deferred, "fetch", noted)
    with torch.profiler.profile() as profile:
        trained(tmp_path / "t.arrow", steps=4)
    asked = [e.key for e in profile.key_averages() if e.key in ("aten::item", "aten::_local_scalar_dense", "aten::nonzero")]
    with torch.profiler.profile() as alone:
        trained(tmp_path / "s.arrow", steps=4, stats=())
    assert asked == [e.key for e in alone.key_averages() if e.key in ("aten::item", "aten::_local_scalar_dense", "aten::nonzero")]
    assert len([n for n in fetches if n]) in (4, 5)


@pytest.mark.usefixtures("deferring")
def test_on_nonfinite_speaks_at_the_end_of_the_step(tmp_path, monkeypatch):
    """The same sentence as at the operator; training has gone on to the end of its step, and no further."""
    with pytest.raises(NonFiniteError) as late:
        trained(tmp_path / "t.arrow", bad_at=1, on_nonfinite="raise")
    monkeypatch.delenv("DISPATCHMON_STATISTICS")
    with pytest.raises(NonFiniteError) as at_once:
        trained(tmp_path / "u.arrow", bad_at=1, on_nonfinite="raise")
    assert str(late.value) == str(at_once.value)
    assert "aten.log.default" in str(late.value)
    assert {row["step"] for row in rows_of(tmp_path / "t.arrow")} == {0, 1}
    assert "aten.addcdiv_.default" in {row["op"] for row in rows_of(tmp_path / "t.arrow") if row["step"] == 1}


@pytest.mark.usefixtures("deferring")
def test_on_nonfinite_speaks_when_the_block_ends_before_the_step_does(tmp_path):
    """What was made after the last step is not lost; the file is whole."""
    with pytest.raises(NonFiniteError, match=r"aten\.log\.default"), DispatchMonitor(
        None, tmp_path / "t.arrow", quiet=True, on_nonfinite="raise"
    ):
        torch.zeros(3).log()
    assert [row["inf"] for row in rows_of(tmp_path / "t.arrow") if row["op"] == "aten.log.default"] == [0, 3]


@pytest.mark.usefixtures("deferring")
def test_infinities_that_were_put_there_are_no_alarm(tmp_path):
    """`fill_(-inf)` and `masked_fill(..., -inf)` are told by the numbers that they were given."""
    with DispatchMonitor(None, tmp_path / "t.arrow", quiet=True, on_nonfinite="raise"):
        torch.full((3,), -math.inf)
        torch.zeros(3).fill_(math.inf)
        torch.zeros(3).masked_fill(torch.tensor([True, False, False]), -math.inf)


@pytest.mark.usefixtures("deferring")
def test_results_stay_the_same(tmp_path):
    """Deferred or not at all: the bits of every parameter."""
    with_it = trained(tmp_path / "t.arrow")
    without = trained(tmp_path / "s.arrow", stats=())
    for one, other in zip(with_it.state_dict().values(), without.state_dict().values(), strict=True):
        assert torch.equal(one, other)


def test_rows_of_pieces_are_merged_as_if_they_were_one():
    """Also where one of them has no finite element, or squares leave the range of float64."""
    values = torch.cat([torch.randn(1000, dtype=torch.float64) * 1e150, torch.full((7,), math.nan, dtype=torch.float64)])
    whole = of_piece(values)
    parts = merged(torch.stack([of_piece(part) for part in values.split([400, 600, 7])]))
    torch.testing.assert_close(parts, whole, rtol=1e-12, atol=0)
    assert whole[reductions.COUNT] == 1000
    assert whole[reductions.NAN] == 7


def test_a_copy_for_the_sink_has_the_rows_and_leaves_them():
    """While the program stands still the sink's thread writes a copy: what is on the device is in it, and comes again later."""
    values = torch.arange(4.0)
    table = Statistics(8, "deferred")
    layout = layout_of(*runs_of(values.shape, values.stride()), 0, values.dtype)
    slot = table.measure(values, layout)
    ((first, copied),) = table.copied()
    assert copied[slot - first][reductions.MAX] == 3
    assert table.waiting
    table.settle()
    assert not table.waiting
    assert table.at(slot)[reductions.MAX] == 3


@pytest.mark.slow
@pytest.mark.usefixtures("deferring")
def test_a_killed_program_leaves_what_was_on_the_device(tmp_path):
    """No batch is full and no step over when it dies: the copy of the sink's thread is what stays."""
    path = tmp_path / "t.arrow"
    subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    rows = pa.Table.from_batches(open_trace(path).scan()).to_pylist()
    assert [row["max"] for row in rows if row["op"] == "aten.arange.default"] == [6.0]


KILLED = """
import os, sys, time, torch
from dispatchmon import DispatchMonitor, open_trace
from dispatchmon.recording import handover
handover.BATCH_NS = 200_000_000
with DispatchMonitor(None, sys.argv[1], quiet=True):
    torch.arange(7.0)
    end = time.monotonic() + 60
    while not open_trace(sys.argv[1]).scan(["op"]).read_all().num_rows and time.monotonic() < end:
        time.sleep(0.02)
    os.kill(os.getpid(), 9)
"""
