"""One monitor writes a file: a second one gets an error, and what others do to the file is noticed and said once."""

import os
import shutil
import signal
import subprocess
import sys
import time
import warnings

import pytest
import torch

from dispatchmon import DispatchMonitor, MonitorStateError, TraceExistsError, TraceInUseError, open_trace
from dispatchmon.writing.flight_recorder import FlightRecorder
from dispatchmon.writing.writer import TraceWriter
from recorded import until
from trace_factory import METADATA, write_trace

HOLDS = """
import sys, torch
from dispatchmon import DispatchMonitor
with DispatchMonitor(None, sys.argv[1], overwrite=True, quiet=True, keep_last=None if sys.argv[2] == "0" else 2):
    torch.ones(2)
    print("open", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("keep_last", [None, 2])
def test_a_second_monitor_of_this_process_is_refused(tmp_path, keep_last):
    """It says why and has written nothing; the first one's trace is complete; then the path is free again."""
    path = tmp_path / "trace.arrow"
    settings = {"overwrite": True, "quiet": True, "keep_last": keep_last}
    second = DispatchMonitor(None, path, **settings)
    with DispatchMonitor(None, path, **settings):
        torch.ones(2)
        with pytest.raises(TraceInUseError) as caught, second:
            pytest.fail("entered")
        with pytest.raises(TraceExistsError), DispatchMonitor(None, path, quiet=True):
            pytest.fail("entered")
        torch.ones(2)
    message = f"{path} is being written by another monitor: give each monitor a path of its own"
    assert str(caught.value) == message
    assert open_trace(path).complete
    assert open_trace(path).rows == 2
    with pytest.raises(MonitorStateError):
        _ = second.trace
    with second:
        torch.ones(2)
    assert (second.path, second.trace.rows, second.trace.complete) == (path, 1, True)


@pytest.mark.parametrize("keep_last", [0, 2])
@pytest.mark.parametrize("way", ["ended", "killed"])
def test_a_monitor_of_another_process_is_respected(tmp_path, keep_last, way):
    """While it lives, its file is not touched; however it ends, the path is free."""
    path = tmp_path / "trace.arrow"
    command = [sys.executable, "-c", HOLDS, str(path), str(keep_last)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "open\n"
        link = tmp_path / "link"
        link.symlink_to(path)
        for name in (path, link):
            with pytest.raises(TraceInUseError), DispatchMonitor(None, name, overwrite=True):
                pytest.fail("entered")
        if way == "killed":
            process.kill()
        else:
            process.communicate("")
        process.wait()
    if way == "ended":
        assert (open_trace(path).complete, open_trace(path).rows) == (True, 1)
    with DispatchMonitor(None, path, overwrite=True, quiet=True) as monitor:
        torch.ones(2)
    assert (monitor.trace.complete, monitor.trace.rows) == (True, 1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "trace.arrow"]


def test_a_forked_worker_does_not_keep_the_file(tmp_path):
    """A child that lives on, as a worker of a loader does, has the file open, and the path is free all the same."""
    path = tmp_path / "trace.arrow"
    with DispatchMonitor(None, path, quiet=True):
        torch.ones(2)
        child = os.fork()
        if not child:
            time.sleep(60)
            os._exit(0)
    try:
        with DispatchMonitor(None, path, overwrite=True, quiet=True) as monitor:
            torch.ones(2)
        assert monitor.trace.complete
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def cut(path):
    """Somebody cuts the file: `> trace.arrow`, a cleaning job."""
    os.truncate(path, path.stat().st_size // 2)


def emptied(path):
    os.truncate(path, 0)


def deleted(path):
    path.unlink()


def replaced(path):
    shutil.copy(path, f"{path}.copy")
    os.replace(f"{path}.copy", path)


def prolonged(path):
    with path.open("ab") as file:
        file.write(bytes(100))


@pytest.mark.parametrize("when", ["before a batch", "before the end"])
@pytest.mark.parametrize("change", [cut, emptied, deleted, replaced, prolonged])
def test_what_others_do_to_the_file_is_noticed(tmp_path, change, when):
    """One warning; the program goes on; what is at the path is never called complete."""
    path = tmp_path / "trace.arrow"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with DispatchMonitor(None, path, quiet=True) as monitor:
            for _ in range(10):
                torch.ones(2)
            recording = monitor._recording
            recording.flush()
            until(lambda: recording.sink.done == 1)
            change(path)
            if when == "before a batch":
                torch.ones(2)
                recording.flush()
                until(lambda: recording.sink.done == 2)
            result = torch.ones(2) + 1
    assert result.tolist() == [2, 2]
    said = [str(each.message) for each in caught if "stopped recording" in str(each.message)]
    words = {
        cut: "somebody cut it", emptied: "somebody cut it", deleted: "it was deleted or replaced",
        replaced: "it was deleted or replaced", prolonged: "somebody else has written to it",
    }  # fmt: skip
    assert len(said) == 1
    assert words[change] in said[0]
    assert isinstance(monitor.error, OSError)
    if change in (cut, replaced, prolonged):
        assert not open_trace(path).complete
    if change is deleted:
        assert not path.exists()


def test_a_new_file_takes_the_place_of_an_old_one(tmp_path):
    """Its permissions stay, and a link to it stays a link; nothing is left beside it."""
    path, link = tmp_path / "trace.arrow", tmp_path / "link.arrow"
    link.symlink_to(path)
    with DispatchMonitor(None, link, quiet=True):  # which leads nowhere yet
        torch.ones(2)
    path.chmod(0o640)
    with DispatchMonitor(None, link, quiet=True, overwrite=True) as monitor:
        torch.ones(2)
        torch.ones(2)
    assert (link.is_symlink(), path.stat().st_mode & 0o777, monitor.trace.rows) == (True, 0o640, 2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link.arrow", "trace.arrow"]


WRITERS = {
    "one file": lambda path: TraceWriter(path, METADATA),
    "flight recorder": lambda path: FlightRecorder(path, METADATA, 2),
}


@pytest.mark.parametrize("before", [False, True], ids=["new", "in the place of another"])
@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS)
def test_killed_while_it_opens(tmp_path, writer, before):
    """Killed at any line of ours, it leaves nothing, or what was there before, or something that can be read."""
    path = tmp_path / "trace.arrow"
    found = set()
    for n in range(1000):
        for old in tmp_path.iterdir():
            shutil.rmtree(old) if old.is_dir() else old.unlink()
        if before:
            write_trace(path, [{}] * 3)
        child = os.fork()
        if not child:
            left = n

            def lines(frame, event, _):
                nonlocal left
                if event == "line" and f"{os.sep}writing{os.sep}" in frame.f_code.co_filename:
                    left -= 1
                    if left < 0:
                        os.kill(os.getpid(), signal.SIGKILL)
                return lines

            sys.settrace(lines)
            writer(path).open()
            sys.settrace(None)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if path.exists():
            trace = open_trace(path)
            found.add((trace.complete, trace.rows))
        else:
            assert not before
            found.add(None)
        if not status:
            break
    else:
        pytest.fail("it did not end")
    assert n > 20
    assert found == {(True, 3) if before else None, (False, 0)}
