"""
What a trace holds when the process, the disk or the sink's own thread fails, and that training never notices.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time

import pytest
import torch

from dispatchmon import DispatchMonitor
from dispatchmon.recording import handover
from dispatchmon.sink import QUEUED
from dispatchmon.trace import open_trace
from dispatchmon.writing.writer import TraceWriter
from folders import TESTS

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("endings")]  # one fixture runs all programs

PROGRAM = str(TESTS / "judges" / "endings.py")
STATUSES = {
    "plain": 0,
    "sigterm": -15,
    "sigterm_with_handler": 3,
    "sys_exit": 4,
    "exception": 1,
    "interrupt": -2,
    "os_exit": 5,
    "left_open": 0,
    "converter_crash": 0,
    "thread_death": 0,
    "file_size_limit": 0,
    "torn_batch": 0,
    "deleted": 0,
    "folder_deleted": 0,
    "fork_and_exit": 0,
    "fork_and_train": 0,
    "fork_worker": 0,
    "flight_recorder_killed": -9,
    "disk_stalls": 0,
    "disk_stalls_for_a_while": 0,
    "spawn_workers": 0,
    "spawn_workers_alone": 0,
}


def run_program(*arguments):
    done = subprocess.run([sys.executable, PROGRAM, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def endings(tmp_path_factory):
    """A folder with the trace and the output of every program, and their exit statuses."""
    folder = tmp_path_factory.mktemp("endings")
    return folder, run_program(folder, *STATUSES)


def read(path):
    """What a reader is told, and the steps of the rows; the events are numbered without a gap."""
    trace = open_trace(path)
    rows = trace.scan(["event", "step"]).read_all()
    events = sorted(set(rows["event"].to_pylist()))
    assert events == list(range(len(events)))
    return trace, rows["step"].to_pylist()


def test_statuses_are_those_without_a_monitor(endings):
    """However a program ends, it ends with the status that it chose."""
    assert endings[1] == STATUSES


@pytest.mark.parametrize(
    ("name", "last_step", "warning"),
    [
        ("plain", 119, None),
        ("sys_exit", 30, "is incomplete: SystemExit in the training loop"),
        ("sigterm_with_handler", 30, "is incomplete: SystemExit in the training loop"),
        ("exception", 30, "is incomplete: ZeroDivisionError in the training loop"),
        ("interrupt", 30, "is incomplete: KeyboardInterrupt in the training loop"),
        ("left_open", 119, "is incomplete: the program ended while the monitor was open"),
        ("sigterm", 30, "was not closed (the process was killed?): read 186 rows up to the cut"),
        ("os_exit", 30, "was not closed (the process was killed?): read 186 rows up to the cut"),
    ],
)
def test_every_ending_leaves_all_steps_or_says_why(endings, name, last_step, warning):
    """All that was recorded is there; unless the program ended as planned, the reader is told how it did not."""
    trace, steps = read(endings[0] / f"{name}.arrow")
    assert (len(steps), steps[-1]) == (6 * (last_step + 1), last_step)
    assert trace.warnings == (() if warning is None else (f"{name}.arrow {warning}",))


@pytest.mark.parametrize(
    ("name", "error", "cause", "reason"),
    [
        ("file_size_limit", "OSError", "cannot be written: [Errno 27] File too large",
         "is incomplete: OSError: [Errno 27] File too large"),
        ("torn_batch", "OSError", "cannot be written: [Errno 27] Error writing bytes to file. Detail: [errno 27] File too large",
         "was not closed (OSError: [Errno 27] Error writing bytes to file. Detail: [errno 27] File too large): read"),
        ("converter_crash", "RuntimeError", "was given up after an error: RuntimeError('boom')", "is incomplete: RuntimeError: boom"),
        ("thread_death", "SystemExit", "was given up after an error: SystemExit('the thread is gone')",
         "is incomplete: SystemExit: the thread is gone"),
    ],
)  # fmt: skip
def test_a_failure_is_said_once_and_training_goes_on(endings, name, error, cause, reason):
    """One warning names the cause, the trace names it too, what was written can be read, and the loop ran to its end."""
    folder = endings[0]
    said = (folder / f"{name}.txt").read_text()
    assert said.count("RuntimeWarning") == 1
    assert f"RuntimeWarning: dispatchmon stopped recording: {folder / name}.arrow {cause}\n" in said
    assert said.endswith(f"error {error}\n")
    assert "trained\n" in said
    trace, steps = read(folder / f"{name}.arrow")
    assert not trace.complete
    assert trace.warnings[0].startswith(f"{name}.arrow {reason}")
    assert trace.rows == len(steps)
    first, last = (re.search(rf"(\d+) {words}", trace.warnings[1]) for words in ("operators that", "steps after"))
    last_step = steps[-1] if steps else -1
    assert int(last[1]) == 119 - last_step
    assert name == "thread_death" or int(first[1]) > 0


@pytest.mark.parametrize("name", ["file_size_limit", "converter_crash"])
def test_a_trace_that_failed_is_closed_for_every_reader(endings, name):
    """The room for the end of the file was kept free: other tools open it too."""
    import polars

    steps = read(endings[0] / f"{name}.arrow")[1]
    assert polars.read_ipc(endings[0] / f"{name}.arrow").height == len(steps) > 0


@pytest.mark.parametrize(
    ("name", "place"), [("deleted", "{0}/deleted"), ("folder_deleted", "{0}/inner/folder_deleted")]
)
def test_a_file_that_is_deleted_is_noticed(endings, name, place):
    """Writing to a deleted file raises nothing, so it is looked for: one warning, and training goes on."""
    said = (endings[0] / f"{name}.txt").read_text()
    path = place.format(endings[0])
    warning = f"dispatchmon stopped recording: {path}.arrow cannot be written: [Errno 2] it was deleted or replaced\n"
    assert said.count("RuntimeWarning") == 1
    assert warning in said
    assert said.endswith("error FileNotFoundError\n")


@pytest.mark.parametrize("name", ["fork_and_exit", "fork_and_train", "fork_worker"])
def test_a_forked_child_leaves_the_file_alone(endings, name):
    """Children that exit, that go on in the block, or that work for a loader add nothing and break nothing."""
    trace, steps = read(endings[0] / f"{name}.arrow")
    assert (trace.warnings, len(steps), steps[-1]) == ((), 720, 119)
    assert re.search(r"^child (0|6\.0)$", (endings[0] / f"{name}.txt").read_text(), re.MULTILINE)


def test_a_killed_flight_recorder_is_read_from_its_folder(endings):
    """The parts that were not yet joined are read in the place of the file."""
    trace = open_trace(endings[0] / "flight_recorder_killed.arrow")
    steps = trace.scan(["step"]).read_all()["step"].to_pylist()
    assert trace.warnings == (
        f"flight_recorder_killed.arrow was not closed (the process was killed?): read {len(steps)} rows "
        "from .flight_recorder_killed.arrow.parts",
    )
    assert set(steps) >= {26, 27, 28, 29, 30}
    assert len(steps) < 186


def check_kills(tmp_path, how_many):
    """After each kill all whole batches can be read, and steps that ended an interval and a grace earlier are there."""
    interval, grace = 100_000_000, 400_000_000  # the grace is for converting and writing, which take their time
    lost = []
    for i, child in enumerate(run_program(tmp_path, "kill", how_many)):
        path = tmp_path / f"{i}.arrow"
        if not child["ended"] and not (path.exists() and path.stat().st_size):
            continue  # killed before the file was there
        _, steps = read(path)
        last = steps[-1] if steps else -1
        first_lost = child["ended"][last + 1] if last + 1 < len(child["ended"]) else child["killed"]
        lost.append(child["killed"] - first_lost - child["kept_waiting"])
    assert len(lost) > how_many // 2
    assert max(lost) <= interval + grace
    return lost


def test_killed_at_any_moment_loses_at_most_one_interval(tmp_path):
    """Of eight programs killed at random times every batch is readable, up to one flush interval before the end."""
    check_kills(tmp_path, 8)


def test_fifty_kills(tmp_path):
    """The same fifty times."""
    check_kills(tmp_path, 50)


@pytest.mark.parametrize("name", ["disk_stalls", "disk_stalls_for_a_while"])
def test_a_disk_that_stands_still_does_not_hold_up_the_program(endings, name):
    """The loop waits for as long as it was told to, then trains on; what was written is read, and not called complete."""
    said = (endings[0] / f"{name}.txt").read_text()
    assert said.count("RuntimeWarning") == 1
    assert f"{name}.arrow cannot be written: nothing was written for 2 seconds\n" in said
    assert said.endswith("trained\nerror TimeoutError\n")
    trace, steps = read(endings[0] / f"{name}.arrow")
    assert not trace.complete
    assert steps == sorted(steps)
    if name == "disk_stalls":  # its thread still stands in the system call
        assert trace.warnings[0].startswith(f"{name}.arrow was not closed (the process was killed?): read {len(steps)} rows")
        assert len(steps) < 6 * 120 - 100
    else:
        assert trace.warnings[0] == f"{name}.arrow is incomplete: TimeoutError: nothing was written for 2 seconds"
        assert trace.files[0].closing["rows"] == len(steps)
        lost = trace.files[0].skipped["operators that could not be written"]
        assert 0 < lost <= 3 * 120 - trace.files[0].closing["events"]


def test_spawned_workers_are_left_alone(endings):
    """They are sent a model that is being recorded and run it; the trace has what the loop did, and the weights are the same."""
    said, alone = ((endings[0] / f"{name}.txt").read_text() for name in ("spawn_workers", "spawn_workers_alone"))
    assert said == alone + "error NoneType\n"
    trace = open_trace(endings[0] / "spawn_workers.arrow")
    assert (trace.complete, trace.files[0].closing["steps"]) == (True, 2)
    calls = trace.sql("SELECT count(*) FROM trace WHERE op = 'aten.addmm.default' AND role = 'output'").to_pylist()
    assert list(calls[0].values()) == [2]


def on_small_disk(folder, name):
    """Run a program whose trace lies on a small disk; what it said."""
    probe = [sys.executable, "-c", "import ctypes, os, sys; sys.exit(ctypes.CDLL(None).unshare(0x20000) != 0)"]
    if subprocess.run(probe, check=False).returncode:
        pytest.skip("may not mount here")
    assert run_program(folder, name) == {name: 0}
    said = (folder / f"{name}.txt").read_text()
    assert said.count("RuntimeWarning") == said.count(f"{name}.arrow cannot be written: [Errno 28] ") == 1
    assert said.endswith("trained\nerror OSError\n")
    return said


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk")
def test_a_full_disk(tmp_path):
    """On a disk of 72 kB the trace holds what fitted, is closed, and says why there is no more."""
    assert "[Errno 28] No space left on device\n" in on_small_disk(tmp_path, "disk_full")
    trace, steps = read(tmp_path / "disk_full.arrow")
    assert trace.warnings[0] == "disk_full.arrow is incomplete: OSError: [Errno 28] No space left on device"
    assert 100 < len(steps) == trace.files[0].closing["rows"] < 720


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk")
def test_a_disk_that_was_full_before(tmp_path):
    """There is no room for the metadata: there is no file then, and nothing of the attempt is left."""
    on_small_disk(tmp_path, "disk_full_at_once")
    assert not list(tmp_path.glob("*.arrow*"))
    assert not [each for each in tmp_path.iterdir() if each.name.startswith(".")]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk")
def test_a_flight_recorder_on_a_full_disk(tmp_path):
    """Its parts cannot be joined, and are read in the place of the file."""
    on_small_disk(tmp_path, "disk_full_flight_recorder")
    trace, steps = read(tmp_path / "disk_full_flight_recorder.arrow")
    assert not trace.complete
    assert trace.warnings[0].endswith(f"read {len(steps)} rows from .disk_full_flight_recorder.arrow.parts")
    assert len(steps) > 50


def test_the_loop_waits_for_a_slow_disk(tmp_path, monkeypatch):
    """No more than the queue's batches are in memory, the loop waits for the disk, and the statement says how long."""
    monkeypatch.setattr(handover, "BATCH_ROWS", 20)
    write = TraceWriter.write

    def slowly(self, batch):
        time.sleep(0.02)
        write(self, batch)

    monkeypatch.setattr(TraceWriter, "write", slowly)
    def timed(call, spent):
        def run(*args, **kwargs):
            start = time.perf_counter_ns()
            try:
                return call(*args, **kwargs)
            finally:
                spent.append(time.perf_counter_ns() - start)

        return run

    x, waiting, inside, outside = torch.ones(2), [], [], []
    with DispatchMonitor(None, tmp_path / "trace.arrow", quiet=True) as monitor:
        sink = monitor._recording.sink
        sink.queue.put, sink.put = timed(sink.queue.put, inside), timed(sink.put, outside)
        start = time.perf_counter_ns()
        for _ in range(300):
            x.add(1)
            waiting.append(sink.queue.qsize())
        loop = time.perf_counter_ns() - start
        put = len(outside)
        waited = sum(inside)
    trace = open_trace(tmp_path / "trace.arrow")
    batches = trace.files[0].batches - 2  # the first and the last are empty
    assert max(waiting) <= QUEUED
    assert (trace.rows, trace.complete) == (600, True)
    assert batches >= put >= 10
    assert loop > (put - QUEUED - 1) * 20_000_000  # those that are neither queued nor being written are written
    assert 0 < waited <= trace.files[0].closing["wait_ns"] <= sum(outside)


def test_max_bytes_stops_and_says_so(tmp_path, monkeypatch, capfd):
    """The trace stays below the size, closed, and says at which step it stopped; the closing line says it too."""
    monkeypatch.setattr(handover, "BATCH_ROWS", 200)
    path, x = tmp_path / "trace.arrow", torch.ones(2)
    with DispatchMonitor(None, path, max_bytes=60_000) as monitor:
        for i in range(2000):
            x.add(i)
            monitor.step()
    assert monitor.error is None
    assert 30_000 < path.stat().st_size <= 60_000 + 10_000  # the footer and the closing statement
    trace, steps = read(path)
    reason = f"max_bytes=60000 was reached in step {steps[-1]}"
    assert trace.warnings[0] == f"trace.arrow is incomplete: {reason}"
    assert f"{1999 - steps[-1]} steps after recording stopped" in trace.warnings[1]
    assert f"no NaN or Inf; recording stopped: {reason}. Next: " in capfd.readouterr().err


def test_unwritable_while_open_is_the_same_error_as_at_the_end(tmp_path, monkeypatch):
    """`monitor.error` is there as soon as it is known, and stays."""
    monkeypatch.setattr(handover, "BATCH_ROWS", 20)
    path, x = tmp_path / "trace.arrow", torch.ones(2)
    monitor = DispatchMonitor(None, path, quiet=True)
    with pytest.warns(RuntimeWarning, match="it was deleted or replaced") as caught, monitor:  # noqa: PT031
        path.unlink()
        while monitor.error is None:
            x.add(1)
        first = monitor.error
    assert monitor.error is first
    assert len(caught) == 1
