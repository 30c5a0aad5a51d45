"""With and without the monitor: the same bits in every output, gradient, parameter, state and random stream."""

from __future__ import annotations

import multiprocessing
import os
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import programs
from comparison import differences, monitored, outcome
from dispatchmon import DispatchMonitor, open_trace
from programs import distributed
from recorded import COMPILES_UNDER_MODES, needs_compilation, rows_of

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", programs.PROGRAMS)
def test_same_bits(name, tmp_path):
    """The program returns the same, leaves the same model and random streams, and takes the path it is about."""
    program = programs.PROGRAMS[name]
    if name.startswith(("compiled", "cond")) and not COMPILES_UNDER_MODES:
        pytest.skip("before torch 2.9 torch.compile compiles nothing under any dispatch mode")
    alone = outcome(program.build)
    watched = outcome(program.build, monitored(tmp_path / "trace.arrow"))
    assert alone["error"] is None
    assert not differences(alone, watched), (alone["error"], watched["error"])
    rows = rows_of(tmp_path / "trace.arrow")
    assert rows
    assert set(program.shows) <= {row["op"] for row in rows}


@pytest.mark.parametrize("settings", [
    {"steps": "1:2"}, {"stats": ()}, {"phases": ("backward",)}, {"modules": "1", "ops": "aten.relu*"}, {"source": False},
    {"verify_values": True},
], ids=str)  # fmt: skip
def test_same_bits_with_other_settings(settings, tmp_path):
    """What is recorded makes no difference either."""
    for name in ("convolutions with inplace activations", "Adam, foreach", "version counters"):
        build = programs.PROGRAMS[name].build
        mine = {k: v for k, v in settings.items() if k != "modules" or build()[0] is not None}
        watched = outcome(build, monitored(tmp_path / f"{name}.arrow", **mine))
        assert not differences(outcome(build), watched)


def test_workers_record_nothing(tmp_path):
    """A DataLoader's forked workers leave no rows, and the trace of their parent is whole."""
    outcome(programs.PROGRAMS["data loader with workers"].build, monitored(tmp_path / "trace.arrow"))
    trace = open_trace(tmp_path / "trace.arrow")
    assert trace.complete
    ops = {row["op"] for row in rows_of(tmp_path / "trace.arrow")}
    assert "aten.addmm.default" in ops
    assert "aten.erfinv.default" not in ops


def test_a_forked_child_trains_unrecorded(tmp_path):
    """A forked child that steps an optimizer does not start to record, whatever ends a step."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    def child():
        before = len(monitor._recording.buffer.packed)
        for _ in range(3):
            step()
        monitor.step()
        step()
        os._exit(0 if len(monitor._recording.buffer.packed) == before and monitor._recording.buffer.idle else 1)

    with DispatchMonitor(model, tmp_path / "trace.arrow", quiet=True) as monitor:
        step()
        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join()
        step()
    assert process.exitcode == 0
    assert open_trace(tmp_path / "trace.arrow").complete
    assert {row["step"] for row in rows_of(tmp_path / "trace.arrow")} == {0, 1}


def compilations_around(tmp_path, first_inside):
    """How often a model is compiled when it is called before, in and after a monitor, or in and after."""
    torch._dynamo.reset()
    backend = programs.compiled.Counted()
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    whole = torch.compile(model, backend=backend)
    function = torch.compile(lambda x: model[0](x).sum(), backend=backend, fullgraph=True)
    x = torch.ones(2, 3)
    counts = []

    def call():
        whole(x)
        function(x)
        counts.append(backend.compilations)

    if not first_inside:
        call()
    with DispatchMonitor(model, tmp_path / "trace.arrow", quiet=True):
        call()
    call()
    return counts


def test_what_was_compiled_before_is_not_compiled_again(tmp_path):
    """A model compiled before the block is called in it and after it without another compilation."""
    assert compilations_around(tmp_path, first_inside=False) == [2, 2, 2]


@needs_compilation
def test_what_was_compiled_inside_is_not_compiled_again(tmp_path):
    """A model first compiled in the block is called after it without another compilation."""
    assert compilations_around(tmp_path, first_inside=True) == [2, 2]


@needs_compilation
@pytest.mark.parametrize("record", [("ops",), ("ops", "modules", "parameters")])
def test_what_runs_between_compiled_frames_is_compiled_as_without_a_monitor(record, tmp_path):
    """After a graph break in a loop dynamo takes each frame as it comes: none of ours, all of the model's."""
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())

    def loop(x):
        for _ in range(3):
            x = model(x)
            torch._dynamo.graph_break()
        x.sum().backward()

    def frames(monitored):
        torch._dynamo.reset()
        counters.clear()
        whole = torch.compile(loop, backend="eager")
        with monitored:
            whole(torch.ones(2, 3))
            whole(torch.ones(2, 3))
        return dict(counters["frames"])

    alone = frames(nullcontext())
    assert alone["ok"] >= 1
    assert frames(DispatchMonitor(model, tmp_path / "trace.arrow", record=record, quiet=True)) == alone
    called = [(row["module"], row["module_call"]) for row in rows_of(tmp_path / "trace.arrow")]
    assert {("0", call) for call in range(6)} <= set(called)


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_two_ranks(kind, tmp_path):
    """On two processes the bits are the same, and each rank writes its own complete file."""
    torch.multiprocessing.spawn(distributed.compare, (kind, str(tmp_path)), nprocs=2)
    for rank in (0, 1):
        assert (tmp_path / f"differences.rank{rank}").read_text() == ""
        assert open_trace(tmp_path / f"trace.rank{rank}.arrow").files[0].complete
    assert open_trace(tmp_path).ranks == (0, 1)
