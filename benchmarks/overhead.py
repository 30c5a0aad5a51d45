"""
What monitoring costs: step time of each contestant over that of the bare step, in interleaved rounds of one process.

    python benchmarks/overhead.py [--rounds 15] [--threads 1] [--only mlp] [--write docs/performance.md]

Each round runs every contestant once, in turn: enter, one step to warm up, then the steps that are timed. The table shows
the median over the rounds, as a ratio within each round, and the quartiles.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch import nn
from torch.utils._debug_mode import DebugMode
from torch.utils._python_dispatch import TorchDispatchMode
from workloads import WORKLOADS, Step, Workload

from dispatchmon import DispatchMonitor

FOLDER = tempfile.mkdtemp()
MARK = "<!-- overhead: {} -->"


class NoOp(TorchDispatchMode):
    """The floor of any tracer in Python."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **kwargs) if kwargs else func(*args)


def monitor(**settings: object) -> Callable[[nn.Module], AbstractContextManager[object]]:
    """A contestant of our own."""
    return lambda model: DispatchMonitor(model, Path(FOLDER) / "trace.arrow", overwrite=True, quiet=True, **settings)


@contextlib.contextmanager
def hooks(model: nn.Module) -> Iterator[None]:
    """What people write by hand: forward hooks that take torch statistics of inputs and outputs."""
    seen = []

    def hook(module: nn.Module, args: object, output: object) -> None:
        for tensor in (*args, output):
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                t = tensor.detach()
                seen.append((t.min().item(), t.max().item(), t.mean().item(), t.std().item(), t.isnan().sum().item()))

    handles = [m.register_forward_hook(hook) for m in model.modules() if not list(m.children())]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def debug_hashes(model: nn.Module) -> Iterator[None]:
    """DebugMode with a hash of every output."""
    with DebugMode() as mode, mode.log_tensor_hashes():
        yield


RARE = "dispatchmon, one step in 100"
OTHERS = "dispatchmon, the other 99 steps"
CONTESTANTS: dict[str, Callable[[nn.Module], AbstractContextManager[object]]] = {
    "no monitor": lambda model: nullcontext(),
    RARE: None,  # type: ignore[dict-item]  # made for each workload
    OTHERS: None,  # type: ignore[dict-item]  # measured with it
    "no-op dispatch mode": lambda model: NoOp(),
    "dispatchmon, structure only": monitor(stats=()),
    "dispatchmon, full": monitor(),
    "dispatchmon, full, without source": monitor(source=False),
    "dispatchmon, full, torch's reductions": None,  # type: ignore[dict-item]
    "dispatchmon, modules only": monitor(record=("modules",)),
    "dispatchmon, parameters only": monitor(record=("parameters",)),
    "DebugMode": lambda model: DebugMode(),
    "DebugMode, output hashes": debug_hashes,
    "detect_anomaly": lambda model: torch.autograd.detect_anomaly(check_nan=True),
    "forward hooks, torch statistics": hooks,
}


@contextlib.contextmanager
def without_kernel(model: nn.Module) -> Iterator[None]:
    """Ours as it is where no C compiler was at hand."""
    os.environ["DISPATCHMON_STATISTICS"] = "torch"
    try:
        with monitor()(model):
            yield
    finally:
        del os.environ["DISPATCHMON_STATISTICS"]


CONTESTANTS["dispatchmon, full, torch's reductions"] = without_kernel


def timed(step: Step, steps: int) -> float:
    """Seconds per step."""
    start = time.perf_counter()
    for _ in range(steps):
        step()
    return (time.perf_counter() - start) / steps


def measured(workload: Workload, rounds: int) -> dict[str, list[float]]:
    """Seconds per step of each contestant, round by round."""
    model, step = workload.make()
    times: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    step()
    for i in range(rounds):
        if sys.stderr.isatty():
            print(f"\r{workload.name}: round {i + 1} of {rounds}  ", end="", file=sys.stderr)
        for name, contestant in CONTESTANTS.items():
            if name == OTHERS:
                continue
            if name == RARE:
                contestant = monitor(steps=f"0::{workload.steps + 1}")
            with contestant(model):
                step()
                times[name].append(timed(step, workload.steps))
                if name == RARE:  # these were not recorded, and the next one is
                    times[OTHERS].append(times[name].pop())
                    times[name].append((99 * times[OTHERS][-1] + timed(step, 1)) / 100)
    return times


def ratios(times: dict[str, list[float]], base: str) -> dict[str, list[float]]:
    """Each round's times over that round's time of the base."""
    return {name: [t / b for t, b in zip(column, times[base])] for name, column in times.items()}  # noqa: B905


def quartiles(values: list[float]) -> tuple[float, float, float]:
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4)
    return low, middle, high


def table(workload: Workload, times: dict[str, list[float]]) -> str:
    """Markdown."""
    over_none, over_noop = ratios(times, "no monitor"), ratios(times, "no-op dispatch mode")
    bare = statistics.median(times["no monitor"]) * 1e3
    lines = [
        f"**{workload.name}** (bare step: {bare:.2f} ms)",
        "",
        "| | × no monitor | quartiles | × no-op mode |",
        "|---|---:|---:|---:|",
    ]
    for name in times:
        low, middle, high = quartiles(over_none[name])
        noop = quartiles(over_noop[name])[1]
        lines.append(f"| {name} | {middle:.2f} | {low:.2f}–{high:.2f} | {noop:.2f} |")
    return "\n".join(lines)


def machine() -> str:
    """What it was measured on."""
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        "",
    )
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    today = datetime.date.today().isoformat()
    return f"{model or platform.processor()}, {os.cpu_count()} cores; {versions}; {today}"


def replaced(path: Path, name: str, text: str) -> None:
    """Put a text between two marks of a Markdown file."""
    start, end = MARK.format(name), MARK.format(f"end of {name}")
    page = path.read_text()
    path.write_text(f"{page.split(start)[0]}{start}\n{text}\n{end}{page.split(end)[1]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="", help="part of a workload's name")
    parser.add_argument("--write", type=Path, help="replace this section of a Markdown file")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    parts = [f"{machine()}; {options.threads} thread{'s' * (options.threads > 1)}, {options.rounds} rounds."]
    for workload in WORKLOADS:
        if options.only.lower() in workload.name.lower():
            parts.append(table(workload, measured(workload, options.rounds)))
            print(parts[-1], end="\n\n", flush=True)
    if options.write is not None:
        replaced(options.write, f"{options.threads} threads", "\n\n".join(parts))


if __name__ == "__main__":
    main()
