"""
Every real architecture that is installed, with and without a full monitor.

    python tests/judges/models/sweep.py                                  # all of them
    python tests/judges/models/sweep.py --library transformers --name gpt
    python tests/judges/models/sweep.py --share 2/5                      # the second fifth

Each runs in a process of its own: a training step, and evaluation under `no_grad` and `inference_mode`, each alone and under
a `DispatchMonitor` that records everything. Loss, outputs, gradients, state, version counters, random streams and living
memory must be the same to the last bit, the trace must be whole and attributed, and nothing may live on afterwards. What
the audit and the search for the first NaN say of each trace must be true: `TRUE` lists what a reader of the code confirmed.
What differs is run alone once more, to tell what is not deterministic by itself. Exits with 1 if anything is not so.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import sys
import tempfile
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch._dynamo  # the first mode imports it: once, not in each process
from torch.utils._python_dispatch import TorchDispatchMode

from comparison import differences, outcome
from dispatchmon import DispatchMonitor, open_trace
from dispatchmon.analysis.audit import audit
from dispatchmon.analysis.nonfinite import find_nonfinite
from dispatchmon.packed.records import FOREIGN, RECOMPUTED
from dispatchmon.recording.dispatch import RecordingMode
from models.architectures import LIBRARIES, Architecture, architectures, call, leaves

SECONDS = 300  # for one architecture
COLUMNS = ("kind", "event", "op", "module", "forward_event")
WIDTHS = (14, 8, 8, 12, 12, 10, 10, 9)
# Findings that are no false alarm: part of the architecture's name, of the finding, and why it is true.
TRUE = (
    ("whisper", "input-overwritten", "the encoder masks the features that its caller gave it, in place"),
    ("switch", "input-overwritten", "the router's jitter multiplies in place the tokens that its experts read afterwards"),
)


@dataclass
class Verdict:
    """What was found out about one architecture. A failure is (reason, what exactly)."""

    architecture: str
    library: str
    failures: list[tuple[str, str]] = field(default_factory=list)
    events: int = 0
    rows: int = 0
    hazards: int = 0  # errors and warnings of the audit
    origins: int = 0  # of NaN or Inf
    unsteady: list[str] = field(default_factory=list)  # what differs between two runs alone, on one thread, too
    seconds: float = 0.0


class Floor(TorchDispatchMode):
    """A dispatch mode that does nothing: what it changes, every tracer changes."""

    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **kwargs) if kwargs else func(*args)

    @classmethod
    def around(cls, model: Any) -> AbstractContextManager[Any]:
        """What `outcome` puts around a run."""
        return cls()


# ---------------------------------------------------------------------------------------------------- what is run
class Program:
    """One way to run an architecture, and weak references to what must be gone afterwards."""

    def __init__(self, architecture: Architecture, way: str) -> None:
        self.architecture, self.way = architecture, way
        self.mortal: list[tuple[str, weakref.ref[Any]]] = []
        self.living_bytes = 0

    def __call__(self) -> tuple[Any, Callable[[Any], Any]]:
        model, inputs, loss_of = self.architecture.make()
        run: Callable[[Any], Any]
        if self.way == "training":
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

            def run(model: Any) -> Any:
                output = call(model, inputs)
                loss = loss_of(output)
                loss.backward()
                optimizer.step()
                states = [state["momentum_buffer"] for state in optimizer.state.values()]
                self.living_bytes = living_bytes()
                return loss, leaves(output), states
        else:
            inputs = self.architecture.for_evaluation(inputs)
            model.eval()

            def run(model: Any) -> Any:
                with torch.no_grad() if self.way == "no_grad" else torch.inference_mode():
                    return leaves(call(model, inputs))

        mortal = [("the model", model), *model.named_parameters(), *model.named_buffers()]
        self.mortal = [(name, weakref.ref(each)) for name, each in mortal]
        return model, run

    def survivors(self) -> list[str]:
        """What of the model still lives."""
        gc.collect()
        return [name for name, ref in self.mortal if ref() is not None]


def living_bytes() -> int:
    """How many bytes the living tensors and their gradients hold, each memory once."""
    gc.collect()
    tensors = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
    grads = [each.grad for each in tensors if each.is_leaf and each.grad is not None]  # no object yet, without a mode
    storages = [each.untyped_storage() for each in tensors + grads if each.layout == torch.strided]
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


# ---------------------------------------------------------------------------------------------------- one architecture
def examine(architecture: Architecture) -> Verdict:
    """Run an architecture in every way with and without a monitor, and say what is wrong."""
    verdict = Verdict(str(architecture), architecture.library)
    start, threads = time.perf_counter(), torch.get_num_threads()
    gc.freeze()  # what was there before is none of the model's memory, and is not searched
    try:
        with tempfile.TemporaryDirectory() as folder:
            for way in ("training", "no_grad", "inference_mode"):
                verdict.failures += compare(Program(architecture, way), Path(folder) / f"{way}.arrow", verdict)
    finally:
        gc.unfreeze()
        torch.set_num_threads(threads)
    verdict.seconds = time.perf_counter() - start
    return verdict


def compare(program: Program, path: Path, verdict: Verdict) -> Iterable[tuple[str, str]]:
    """What is wrong with one way of running."""
    way = program.way
    alone = outcome(program)
    if alone["error"] is not None:
        return [(f"{way}: raises without a monitor", told(alone["error"]))]
    living, surviving = program.living_bytes, program.survivors()

    monitor: Any = None
    nodes: dict[int, int] = {}  # event -> what the hot path noted of the autograd node that ran
    before = RecordingMode.before

    def monitored(model: Any) -> AbstractContextManager[Any]:
        nonlocal monitor
        monitor = DispatchMonitor(model, path, quiet=True)
        return monitor

    def spied(self: RecordingMode, *args: Any) -> Any:
        pending = before(self, *args)
        nodes[pending[0]] = pending[4]
        return pending

    with mock.patch.object(RecordingMode, "before", spied):
        watched = outcome(program, monitored)
    watched_living, kept = program.living_bytes, sorted(set(program.survivors()) - set(surviving))
    changed = differences(alone, watched)
    if changed and (unsteady := differences(alone, outcome(program))):
        if torch.get_num_threads() > 1:  # one thread adds in one order
            torch.set_num_threads(1)
            path.unlink()
            return compare(program, path, verdict)
        verdict.unsteady += [f"{way}: {name}" for name in unsteady]
        changed = [name for name in changed if name not in unsteady]

    failures = []
    if watched["error"] is not None:
        failures.append((f"{way}: raises under the monitor", told(watched["error"])))
    elif changed:
        also = (
            ", as a no-op mode does" if set(changed) <= set(differences(alone, outcome(program, Floor.around))) else ""
        )
        failures.append((f"{way}: other bits{also}", some(sorted(changed))))
    if watched_living != living:
        # Under any mode a tensor that only autograd holds has a Python object, and can be seen.
        outcome(program, Floor.around)
        if watched_living != program.living_bytes:
            failures.append((f"{way}: other memory lives", f"{watched_living:,} bytes, not {program.living_bytes:,}"))
    if kept:
        failures.append((f"{way}: lives on after the monitor", some(kept)))
    if monitor.error is not None:
        return [*failures, (f"{way}: the monitor stopped", told((type(monitor.error), str(monitor.error))))]
    return failures + [(f"{way}: {reason}", what) for reason, what in judged(path, nodes, verdict)]


def judged(path: Path, nodes: dict[int, int], verdict: Verdict) -> Iterable[tuple[str, str]]:
    """What is wrong with a trace; its events and rows are added to the verdict."""
    failures = []
    trace = open_trace(path)
    if trace.warnings:
        failures.append(("the trace warns", "; ".join(trace.warnings)))
    modules: dict[int, str | None] = {}
    lost: Counter[str] = Counter()
    for batch in trace.scan(COLUMNS):
        for kind, event, op, module, forward in zip(*(batch.column(name).to_pylist() for name in COLUMNS), strict=True):
            verdict.rows += kind == "op"
            if event in modules or kind != "op":
                continue
            modules[event] = module
            numbered = nodes[event] >= 0 or FOREIGN < nodes[event] <= RECOMPUTED
            # It belongs where its forward operator ran, which may be outside of the model: the loss.
            if numbered and module is None and (forward is None or modules[forward] is not None):
                lost[op] += 1
    verdict.events += len(modules)
    if modules.keys() != nodes.keys():
        failures.append(("events are missing", f"{len(modules)} of {len(nodes)}"))
    if lost:
        failures.append(("backward operators without a module", some([f"{op} ({n})" for op, n in lost.items()])))
    hazards = audit(trace).hazards
    verdict.hazards += len(hazards)
    failures += [
        (f"the audit says {finding.kind}", finding.message)
        for finding in hazards
        if not any(name in verdict.architecture and finding.kind == kind for name, kind, _ in TRUE)
    ]
    answer = find_nonfinite(trace)
    verdict.origins += len(answer.origins)
    failures += [("the search for the first NaN says", origin.message) for origin in answer.origins]
    return failures


def told(error: tuple[type, str]) -> str:
    """An exception in one line."""
    return f"{error[0].__name__}: {error[1]}".replace("\n", " ")[:300]


def some(names: list[str], most: int = 4) -> str:
    """The first few names, and how many there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


# ---------------------------------------------------------------------------------------------------- all of them
def examine_apart(architecture: Architecture) -> Verdict:
    """`examine` in a forked process, with a time limit."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def child() -> None:
        try:
            sender.send(examine(architecture))
        except Exception as error:
            verdict = Verdict(str(architecture), architecture.library)
            verdict.failures.append(("the examination failed", told((type(error), str(error)))))
            sender.send(verdict)

    process = context.Process(target=child)
    process.start()
    sender.close()
    verdict = Verdict(str(architecture), architecture.library)
    try:
        if receiver.poll(SECONDS):
            verdict = receiver.recv()
        else:
            verdict.failures.append(("not over in time", f"{SECONDS} s"))
            process.kill()
        process.join()
    except EOFError:
        process.join()
        verdict.failures.append(("the process died", f"exit code {process.exitcode}"))
    return verdict


def share_of(found: list[Architecture], share: str) -> list[Architecture]:
    """The k-th of n shares, each of every library and kind."""
    k, _, n = share.partition("/")
    if not (k.isdecimal() and n.isdecimal() and 1 <= int(k) <= int(n)):
        raise SystemExit(f"--share is {share!r}: give K/N, as 2/5")
    return found[int(k) - 1 :: int(n)]


def report(verdicts: list[Verdict]) -> str:
    """The result as a table by library, then what failed, by reason."""
    lines = [f"torch {torch.__version__}", ""]
    titles = ("architectures", "clean", "failed", "events", "rows", "hazards", "origins", "seconds")
    lines.append("library       " + "".join(title.rjust(width) for title, width in zip(titles, WIDTHS, strict=True)))
    for library in dict.fromkeys(v.library for v in verdicts):
        mine = [v for v in verdicts if v.library == library]
        failed = sum(bool(v.failures) for v in mine)
        counts = len(mine), len(mine) - failed, failed, sum(v.events for v in mine), sum(v.rows for v in mine)
        found = sum(v.hazards for v in mine), sum(v.origins for v in mine)
        numbers = (*counts, *found, round(sum(v.seconds for v in mine)))
        lines.append(f"{library:14}" + "".join(f"{n:{width},}" for n, width in zip(numbers, WIDTHS, strict=True)))
    reasons: dict[str, list[str]] = {}
    for verdict in verdicts:
        for reason, what in verdict.failures:
            reasons.setdefault(reason, []).append(f"    {verdict.architecture}: {what}")
        if verdict.unsteady:
            note = "not a failure: differs between two runs without a monitor, on one thread, too"
            reasons.setdefault(note, []).append(f"    {verdict.architecture}: {some(verdict.unsteady)}")
    for reason, cases in sorted(reasons.items()):
        lines += ["", f"{reason} ({len(cases)})", *cases]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Sweep over the installed libraries, and print the result."""
    parser = argparse.ArgumentParser(description="Compare real architectures with and without a monitor.")
    parser.add_argument("--library", choices=LIBRARIES, help="only this one; by default all that are installed")
    parser.add_argument("--name", default="", help="only architectures with this in their name")
    parser.add_argument("--share", default="1/1", metavar="K/N", help="only the K-th of N shares")
    options = parser.parse_args(arguments)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    warnings.simplefilter("ignore")

    chosen = share_of(architectures([options.library] if options.library else LIBRARIES, options.name), options.share)
    if not chosen:
        print("no such architecture: is the library installed?", file=sys.stderr)
        return 1
    verdicts: list[Verdict] = []
    for i, architecture in enumerate(chosen, 1):
        if sys.stderr.isatty():
            print(f"\r\x1b[K[{i}/{len(chosen)}] {architecture}", end="", file=sys.stderr, flush=True)
        verdicts.append(examine_apart(architecture))
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    print(report(verdicts))
    return 1 if any(verdict.failures for verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
