"""
The same workloads under other tools, beside ours: mindstudio-probe's trend monitor and torchlens.

    make bench-peers

They get a virtual environment of their own. Each round runs every contestant once, in turn, as in overhead.py. What a tool
cannot do it is not asked for: torchlens sees forward passes, one at a time.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from importlib.metadata import version
from pathlib import Path

import torch
from overhead import machine, quartiles, ratios, replaced, timed
from torch import nn
from workloads import WORKLOADS, Step, Workload

from dispatchmon import DispatchMonitor

FOLDER = tempfile.mkdtemp()
Contestant = Callable[[nn.Module, Step], AbstractContextManager[Step]]


@contextlib.contextmanager
def plain(model: nn.Module, step: Step) -> Iterator[Step]:
    """Nothing."""
    yield step


def ours(**settings: object) -> Contestant:
    """A monitor."""

    @contextlib.contextmanager
    def run(model: nn.Module, step: Step) -> Iterator[Step]:
        with DispatchMonitor(model, Path(FOLDER) / "trace.arrow", overwrite=True, quiet=True, **settings):
            yield step

    return run


@contextlib.contextmanager
def mindstudio(model: nn.Module, step: Step) -> Iterator[Step]:
    """Its monitor: inputs, outputs and their gradients of every module; parameters, gradients and optimizer states."""
    from msprobe.pytorch import TrainerMon

    optimizer = next(
        cell.cell_contents for cell in step.__closure__ or () if isinstance(cell.cell_contents, torch.optim.Optimizer)
    )
    config = Path(FOLDER) / "config.json"
    config.write_text(
        json.dumps(
            {
                "targets": {},
                "all_xy": True,
                "xy_distribution": True,
                "wg_distribution": True,
                "mv_distribution": True,
                "param_distribution": True,
                "format": "csv",
                "ops": ["min", "max", "mean", "norm", "nans"],
            }
        )
    )
    os.environ["MONITOR_OUTPUT_DIR"] = str(Path(FOLDER) / "msprobe")
    monitor = TrainerMon(str(config), params_have_main_grad=False)
    monitor.set_monitor(model, optimizer, grad_acc_steps=1)
    try:
        yield step
    finally:
        monitor._remove_all_hooks_final(optimizer)


@contextlib.contextmanager
def torchlens_record(model: nn.Module, step: Step) -> Iterator[Step]:
    """One recorded forward pass after the other, by the faster of its two ways."""
    import torchlens

    x = next(cell.cell_contents for cell in step.__closure__ or () if isinstance(cell.cell_contents, torch.Tensor))

    def traced() -> None:
        with torch.no_grad():
            torchlens.record(model, x, default_op=True)

    yield traced


TRAINING: dict[str, Contestant] = {
    "no monitor": plain,
    "dispatchmon, full": ours(),
    "dispatchmon, modules and parameters": ours(record=("modules", "parameters")),
    "mindstudio-probe, monitor": mindstudio,
}
INFERENCE: dict[str, Contestant] = {
    "no monitor": plain,
    "dispatchmon, full": ours(),
    "dispatchmon, structure only": ours(stats=()),
    "torchlens, record": torchlens_record,
}


def table(workload: Workload, rounds: int) -> str:
    """Markdown."""
    contestants = INFERENCE if "inference" in workload.name else TRAINING
    times: dict[str, list[float]] = {name: [] for name in contestants}
    failed: dict[str, str] = {}
    for _ in range(rounds):
        model, step = workload.make()
        step()
        for name, contestant in contestants.items():
            if name in failed:
                continue
            try:
                with contextlib.redirect_stdout(io.StringIO()), contestant(model, step) as run:
                    run()
                    times[name].append(timed(run, max(1, workload.steps // 4)))
            except Exception as error:
                failed[name] = f"{type(error).__name__}: {error}".splitlines()[0]
    lines = [f"**{workload.name}**", "", "| | × no monitor | quartiles |", "|---|---:|---:|"]
    over = ratios({name: column for name, column in times.items() if name not in failed}, "no monitor")
    for name in contestants:
        if name in failed:
            lines.append(f"| {name} | — | {failed[name]} |")
        else:
            low, middle, high = quartiles(over[name])
            lines.append(f"| {name} | {middle:.2f} | {low:.2f}–{high:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--write", type=Path, help="replace this section of a Markdown file")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(options.threads)
    tools = ", ".join(f"{name} {version(name)}" for name in ("mindstudio-probe", "torchlens"))
    parts = [f"{machine()}; {tools}; {options.threads} thread, {options.rounds} rounds."]
    for workload in WORKLOADS:
        parts.append(table(workload, options.rounds))
        print(parts[-1], end="\n\n", file=sys.stderr, flush=True)
    if options.write is not None:
        replaced(options.write, "peers", "\n\n".join(parts))


if __name__ == "__main__":
    main()
