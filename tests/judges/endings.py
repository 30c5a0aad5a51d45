"""
Programs that record and then end in some way, each in a forked child, so that torch is imported once.

    python endings.py FOLDER NAME...
    python endings.py FOLDER kill HOW_MANY

Each child writes FOLDER/NAME.arrow and what it says to FOLDER/NAME.txt; its exit status goes to stdout as JSON.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import multiprocessing
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext, suppress
from pathlib import Path

import torch
import torch._dynamo  # otherwise each child would import it with its first operator

from dispatchmon import DispatchMonitor, open_trace, sink
from dispatchmon.errors import DispatchmonError
from dispatchmon.recording import handover
from dispatchmon.sink import Sink
from dispatchmon.writing.converter import Converter
from dispatchmon.writing.writer import TraceWriter

torch.set_num_threads(1)
STEPS = 120
monitors = []


def train(path, between=lambda step: None, enter=True, **settings):
    """Record STEPS steps of three operators each, in batches of about 100 rows, with `between` after each step."""
    x = torch.ones(8)
    monitor = DispatchMonitor(None, path, quiet=True, **settings)
    monitors.append(monitor)
    if not enter:
        monitor.__enter__()
        steps(monitor, x, between)
        return
    with monitor:
        steps(monitor, x, between)
    print("error", type(monitor.error).__name__)


def steps(monitor, x, between):
    for step in range(STEPS):
        x.mul(2).add(step)
        x.neg_()
        between(step)
        monitor.step()
    print("trained")


def at(step, action):
    return lambda now: action() if now == step else None


def settle():
    """Wait until the thread has written the six rows of this step too, or failed; a busy machine needs its time."""
    monitor, end = monitors[-1], time.monotonic() + 30
    while monitor._recording.sink.error is None and time.monotonic() < end:
        with suppress(OSError, DispatchmonError):  # parts of a flight recorder go while they are read
            if open_trace(monitor.path).scan(["step"]).read_all()["step"].to_pylist().count(monitor.current_step) == 6:
                return
        time.sleep(0.02)


def kill_self(how):
    settle()
    os.kill(os.getpid(), how)


def plain(path):
    train(path)


def sigterm(path):
    train(path, at(30, lambda: kill_self(signal.SIGTERM)))


def sigterm_with_handler(path):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
    train(path, at(30, lambda: kill_self(signal.SIGTERM)))


def sys_exit(path):
    train(path, at(30, lambda: sys.exit(4)))


def exception(path):
    train(path, at(30, lambda: 1 / 0))


def interrupt(path):
    train(path, at(30, lambda: kill_self(signal.SIGINT)))


def os_exit(path):
    train(path, at(30, lambda: (settle(), os._exit(5))))


def left_open(path):
    train(path, enter=False)


def converter_crash(path):
    convert = Converter.convert

    def failing(self, batch):
        if batch.number == 2:
            raise RuntimeError("boom")
        return convert(self, batch)

    Converter.convert = failing
    train(path, lambda _: time.sleep(0.01))


def thread_death(path):
    Sink.next_batch = lambda self: sys.exit("the thread is gone")
    train(path, lambda _: time.sleep(0.01))


def file_size_limit(path):
    train(path, at(5, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (70_000, resource.RLIM_INFINITY))))


def torn_batch(path):
    """The disk fills although there seemed to be room."""
    from dispatchmon.writing import writer

    def limit():
        writer.room_after = lambda number, end: (1 << 40, 0)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))

    def between(step):
        if step == 5:
            limit()
        elif step == STEPS - 1:  # the torn batch was taken back; room for the closing statement is made again
            settle()
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    train(path, between)


def on_small_disk(path, size, **settings):
    """Train with the trace on a disk of its own, and bring what is there after it."""
    small = path.parent / path.stem
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(small)], check=True)
    train(small / path.name, lambda _: time.sleep(0.01), **settings)
    for each in small.iterdir():
        (shutil.copytree if each.is_dir() else shutil.copy)(each, path.parent / each.name)


def disk_full(path):
    on_small_disk(path, "72k")


def disk_full_at_once(path):
    on_small_disk(path, "4k")


def disk_full_flight_recorder(path):
    on_small_disk(path, "96k", keep_last=100)


def stall(path, until):
    """From step 20 on the disk takes nothing, until the step that is given: the thread stands in a system call."""
    sink.PATIENCE = 2
    gate, opener = os.pipe()
    write = TraceWriter.write

    def stalling(self, batch):
        if monitors[-1].current_step >= 20:
            os.read(gate, 1)
        write(self, batch)

    TraceWriter.write = stalling
    train(path, at(until, lambda: os.write(opener, b"." * STEPS)))


def disk_stalls(path):
    stall(path, -1)


def disk_stalls_for_a_while(path):
    stall(path, 110)


def deleted(path):
    train(path, at(20, lambda: (settle(), path.unlink())))


def folder_deleted(path):
    inner = path.parent / "inner"

    def delete():
        settle()
        (inner / path.name).unlink()
        inner.rmdir()

    train(inner / path.name, at(20, delete))


def fork_and_exit(path):
    """A child that ends as Python ends must leave the file alone, also while the parent's thread is writing."""

    def fork(step):
        if step % 40 == 0 and (pid := os.fork()) == 0:
            torch.ones(3).add(1)
            raise SystemExit(0)
        if step % 40 == 0:
            print("child", os.waitpid(pid, 0)[1])

    train(path, fork)


def fork_and_train(path):
    """A child that goes on in the block, and leaves it."""
    pids = []

    def fork(step):
        if step == 10:
            pids.append(os.fork())

    train(path, fork)
    if pids[0] == 0:
        os._exit(0)
    print("child", os.waitpid(pids[0], 0)[1])


def record_in_worker(queue):
    queue.put(float(torch.ones(3).add(1).sum()))


def fork_worker(path):
    context = multiprocessing.get_context("fork")

    def work(step):
        if step == 10:
            queue = context.SimpleQueue()
            process = context.Process(target=record_in_worker, args=(queue,))
            process.start()
            print("child", queue.get())
            process.join()

    train(path, work)


class Samples(torch.utils.data.Dataset):
    """
    What a spawned worker is sent: a model that is being recorded, which the worker runs.

    It has the loop's weights in shared memory, which change at any moment: what it makes of them is thrown away.
    """

    def __init__(self, model):
        self.model = model

    def __len__(self):
        return 8

    def __getitem__(self, i):
        x = torch.full((4,), float(i))
        with torch.no_grad():
            self.model(x)
        return x


def with_workers(around):
    """One epoch over batches of a loader whose workers are processes of their own, made in the middle of the recording."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    with around(model) as monitor:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        loader = torch.utils.data.DataLoader(
            Samples(model), batch_size=4, num_workers=2, multiprocessing_context="spawn"
        )
        for batch in loader:
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
    print("weights", *model.weight.flatten().tolist())
    return monitor


def spawn_workers(path):
    monitor = with_workers(
        lambda model: DispatchMonitor(model, path, quiet=True, record=("ops", "modules", "parameters"))
    )
    print("error", type(monitor.error).__name__)


def spawn_workers_alone(_):
    with_workers(nullcontext)


def flight_recorder_killed(path):
    train(path, lambda step: kill_self(signal.SIGKILL) if step == 30 else time.sleep(0.01), keep_last=5)


def waiting(pid):
    """Nanoseconds that the threads of a process have waited for a processor, where the kernel counts them."""
    with suppress(OSError):
        return sum(int(each.read_text().split()[1]) for each in Path(f"/proc/{pid}/task").glob("*/schedstat"))
    return 0


def kill_children(folder, how_many):
    """
    Kill children at random times, also before their first operator and inside an operator.

    For each, the JSON has the time of its death, of each step the time at which it had ended, and for how long its
    threads were ready to run and others had the processors.
    """
    chance, found = random.Random(0), []
    handover.BATCH_ROWS = 2000
    for i in range(how_many):
        log = mmap.mmap(-1, 8 * 100_000)
        if (pid := os.fork()) == 0:
            ended, x = memoryview(log).cast("q"), torch.ones(8)
            with DispatchMonitor(None, folder / f"{i}.arrow", quiet=True) as monitor:
                for step in range(100_000):
                    x.mul(step).add_(1)
                    if step % 300 == 299:
                        time.sleep(0.05)
                    monitor.step()
                    ended[step] = time.perf_counter_ns()
        time.sleep(chance.uniform(0.05, 0.7))
        killed, kept_waiting = time.perf_counter_ns(), waiting(pid)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        times = list(memoryview(log).cast("q"))
        found.append({"killed": killed, "ended": times[: times.index(0)], "kept_waiting": kept_waiting})
    print(json.dumps(found))


def main(folder, names):
    handover.BATCH_ROWS = 100
    handover.BATCH_NS = 100_000_000
    if names[0] == "kill":
        kill_children(folder, int(names[1]))
        return
    statuses = {}
    for name in names:
        if (pid := os.fork()) == 0:
            out = os.open(folder / f"{name}.txt", os.O_WRONLY | os.O_CREAT)
            os.dup2(out, 1)
            os.dup2(out, 2)
            signal.alarm(60)
            globals()[name](folder / f"{name}.arrow")
            return
        _, statuses[name] = os.waitpid(pid, 0)
    print(json.dumps({name: os.waitstatus_to_exitcode(status) for name, status in statuses.items()}))


if __name__ == "__main__":
    ctypes.CDLL(None).unshare(0x00020000)  # mounts of ours are nobody else's
    main(Path(sys.argv[1]), sys.argv[2:])
