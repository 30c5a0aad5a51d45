"""
Torch's own operator database under the monitor.

Each sample input of each operator runs as up to three programs (forward and backward, in place, `out=`), and each program
runs three times: without the monitor, with it, and with it above an independent witness of all bytes. Checked are

1. the same exception, or none; 2. the same bits in results, gradients and arguments, the same version counters, strides,
autograd nodes and random state; 3. a row for every tensor, `written` where bytes changed; 4. every statistic.

    python tests/judges/operator_sweep.py --share 1/4 --json part1.json     one quarter of the operators, all dtypes
    python tests/judges/operator_sweep.py --write-docs part*.json           docs/coverage.md from the summaries
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import random
import re
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from torch.testing._internal import common_methods_invocations as database
from torch.testing._internal.common_optimizers import optim_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from checking_mode import CheckingMode, bytes_of, disagreements
from dispatchmon import DispatchMonitor

DTYPES = ("float32", "float64", "float16", "bfloat16", "complex64", "int64", "int32", "uint8", "bool")
SEED = 20240

# What is excused, and why: (operator, variant) -> (check, reason). `*` stands for any variant. "bits below any mode" are
# excused only where a dispatch mode that does nothing gives the same bits as the monitor.
UNWRITTEN = "bits", "The result is memory that nobody has written: only its size, strides and dtype are compared."
VECTORS = "bits below any mode", (
    "Below any dispatch mode torch computes singular or eigenvectors too, though only the values are asked for "
    "(`isTensorSubclassLike`), and LAPACK's other routine rounds differently (1e-6 in float32)."
)  # fmt: skip
FORMULA = "bits below any mode", (
    "Below any dispatch mode torch's backward formula takes a branch that suits tensor subclasses "
    "(`areAnyTensorSubclassLike`) and rounds differently (1e-7 in float32)."
)  # fmt: skip
NODE = "bits below any mode", "The same bits, by another autograd node below any dispatch mode (`CtcLossBackward1`)."
NOT_FILLED = "bits", (
    "An error of torch 2.13: below any dispatch mode `torch.linalg.matrix_rank(..., out=)` returns the right result "
    "and leaves `out` unwritten (`areAnyTensorSubclassLike`)."
)  # fmt: skip
EXCEPTIONS: dict[tuple[str, str], tuple[str, str]] = {
    **{(name, "*"): UNWRITTEN for name in ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")},
    **{(name, "*"): VECTORS for name in ("linalg.cond", "linalg.eigvalsh", "linalg.svdvals", "norm.nuc")},
    **{(name, "*"): FORMULA for name in ("prod", "masked.prod", "cumprod")},
    **{(name, "out"): NOT_FILLED for name in ("linalg.matrix_rank", "linalg.matrix_rank.hermitian")},
    ("nn.functional.ctc_loss", "*"): NODE,
}  # fmt: skip


@dataclass(frozen=True)
class Subject:
    """One entry of a database, in one dtype."""

    family: str
    name: str
    entry: Any
    dtype: str

    def __str__(self) -> str:
        return f"{self.name}-{self.dtype}"


@dataclass
class Program:
    """Something to run three times, on inputs that are the same each time."""

    label: str
    run: Callable[[Any], Any]
    inputs: list[Any]


@dataclass
class Failure:
    """One disagreement."""

    subject: str
    program: str
    check: str
    detail: str


@dataclass
class Report:
    """What became of one subject."""

    family: str
    name: str
    dtype: str
    samples: int = 0
    programs: int = 0
    raised: int = 0
    events: int = 0
    rows: int = 0
    measured: int = 0
    written: int = 0
    seconds: float = 0.0
    failures: list[Failure] = field(default_factory=list)
    excused: dict[str, int] = field(default_factory=dict)


# --------------------------------------------------------------------------------------------------------- subjects
def subjects(dtypes: Sequence[str] = DTYPES, names: str = "*") -> list[Subject]:
    """Every operator and optimizer of torch's databases, in each dtype that it supports on CPU."""
    found = []
    for dtype in dtypes:
        for family in sorted(
            name for name in dir(database) if name == "op_db" or re.fullmatch("foreach_.*_op_db", name)
        ):
            for entry in getattr(database, family):
                if getattr(torch, dtype) in entry.supported_dtypes("cpu"):
                    name = f"{entry.name}.{entry.variant_test_name}" if entry.variant_test_name else entry.name
                    found.append(Subject(family, name, entry, dtype))
        if dtype in ("float32", "float64", "float16", "bfloat16", "complex64"):
            found += [Subject("optim_db", entry.optim_cls.__name__, entry, dtype) for entry in optim_db]
    return [s for s in found if fnmatchcase(s.name, names)]


def programs(subject: Subject, most: int | None) -> Iterator[Program]:
    """The programs of a subject; at most `most` samples of each variant, evenly chosen."""
    if subject.family == "optim_db":
        yield from optimizer_programs(subject.entry, getattr(torch, subject.dtype), most)
    else:
        yield from operator_programs(subject.entry, getattr(torch, subject.dtype), most)


def operator_programs(op: Any, dtype: torch.dtype, most: int | None) -> Iterator[Program]:
    """Forward and backward, in place, and into `out=`."""
    differentiable = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    variants: list[tuple[str, Callable[[Any], Any], bool]] = [
        ("forward", lambda x: forward(op, x, differentiable), differentiable)
    ]
    if (inplace := op.get_inplace()) is not None:
        variants.append(("inplace", lambda x: in_place(inplace, x), differentiable and op.supports_inplace_autograd))
    if op.supports_out and not op.name.startswith("_foreach_"):
        variants.append(("out", lambda x: into_out(op, x), False))
    for variant, run, requires_grad in variants:
        seed()
        copies = [list(op.sample_inputs("cpu", dtype, requires_grad=requires_grad)) for _ in range(3) if seed() is None]
        chosen = range(len(copies[0]))
        if most is not None and len(chosen) > most:
            chosen = range(0, len(copies[0]), -(-len(copies[0]) // most))
        for i in chosen:
            yield Program(f"{variant}[{i}]", run, [c[i] for c in copies])


def forward(op: Any, sample: Any, differentiable: bool) -> Any:
    """Call it, and run backward if some result asks for it."""
    result = op(sample.input, *sample.args, **sample.kwargs)
    return Fresh((result, backward(sample, sample.output_process_fn_grad(result)) if differentiable else None))


def in_place(op: Any, sample: Any) -> Any:
    """Call the in-place variant; on a copy where the argument is a leaf that wants a gradient."""
    target = sample.input
    if isinstance(target, Tensor) and target.requires_grad:
        target = target.clone()
    elif isinstance(target, list):
        target = [t.clone() if t.requires_grad else t for t in target]
    result = op(target, *sample.args, **sample.kwargs)
    return Once(target), Fresh((result, backward(sample, target)))


def into_out(op: Any, sample: Any) -> Any:
    """Call it with `out=`: the right shape filled with ones, or an empty tensor to be resized, in turn."""
    result = op(sample.input, *sample.args, **sample.kwargs)
    right = isinstance(sample.input, Tensor) and sample.input.dim() % 2 == 0
    make: Callable[[Tensor], Tensor] = torch.ones_like if right else lambda t: torch.empty(0, dtype=t.dtype)
    if isinstance(result, Tensor):
        out: Any = make(result)
    else:
        out = tuple(make(t) for t in result)
    return Fresh((result, op(sample.input, *sample.args, **sample.kwargs, out=out))), Once(out)


def backward(sample: Any, result: Any) -> list[Tensor | None] | None:
    """Gradients of every leaf among the inputs."""
    roots = [t for t in tree_leaves(result) if isinstance(t, Tensor) and t.requires_grad]
    if not roots:
        return None
    torch.autograd.backward(roots, [torch.ones_like(t) * (i + 0.5) for i, t in enumerate(roots)])
    leaves = tree_leaves((sample.input, sample.args, sample.kwargs))
    return [t.grad for t in leaves if isinstance(t, Tensor) and t.is_leaf]


def optimizer_programs(entry: Any, dtype: torch.dtype, most: int | None) -> Iterator[Program]:
    """Three steps of each configuration and implementation on two layers."""
    implementations: list[dict[str, Any]] = [{}]
    implementations += [
        {name: True} for name in entry.supported_impls if name != "fused" or "cpu" in entry.supports_fused_on
    ]
    implementations += [{"foreach": False}] if "foreach" in entry.supported_impls else []
    configurations = list(product(enumerate(entry.optim_inputs_func(device="cpu")), implementations))
    for (i, config), flags in configurations[: most if most is None else most * 3 : 1]:
        if any(config.kwargs.get(name, value) != value for name, value in flags.items()):
            continue
        kwargs = config.kwargs | flags

        def run(parameters: list[Tensor], kwargs: dict[str, Any] = kwargs) -> Any:
            optimizer = entry.optim_cls(parameters, **deepcopy(kwargs))

            def loss_and_gradients() -> Tensor:
                optimizer.zero_grad()
                if entry.only_supports_sparse_grads:
                    index = torch.tensor([[0, 2, 2]])
                    for p in parameters:
                        p.grad = torch.sparse_coo_tensor(index, torch.ones(3, *p.shape[1:], dtype=p.dtype), p.shape)
                    return torch.tensor(1.0)
                loss = sum((p * p).abs().sum() * (n + 0.5) for n, p in enumerate(parameters))
                loss.backward()
                return loss

            for _ in range(3):
                if entry.step_requires_closure:
                    optimizer.step(loss_and_gradients)
                else:
                    loss_and_gradients()
                    optimizer.step()
            return [parameters, [optimizer.state.get(p) for p in parameters]]

        def parameters() -> list[Tensor]:
            seed()
            shapes = [(4, 3), (3, 5)] if entry.optim_cls.__name__ == "Muon" else [(4, 3), (4,), (3, 2, 2)]
            return [torch.nn.Parameter(torch.randn(shape, dtype=torch.float64).to(dtype)) for shape in shapes]

        label = ",".join(f"{k}={v}" for k, v in kwargs.items()) or "defaults"
        yield Program(f"{i}:{label}", run, [parameters() for _ in range(3)])


# --------------------------------------------------------------------------------------------------------- checking
def seed() -> None:
    """The same random numbers for everything that follows."""
    torch.manual_seed(SEED)
    random.seed(SEED)
    np.random.seed(SEED)


def attempt(program: Program, inputs: Any) -> tuple[Any, str | None, bytes]:
    """(results, exception, random state) of one run."""
    seed()
    try:
        result, error = program.run(inputs), None
    except Exception as e:
        result, error = None, f"{type(e).__name__}: {re.sub('0x[0-9a-f]+', '0x', str(e))}"
    return result, error, torch.default_generator.get_state().numpy().tobytes()


class Fresh(NamedTuple):
    """
    Results, of which the version counter does not matter.

    Where a kernel makes its result in several writes, they count in plain torch and not below a dispatch mode. Autograd
    compares a counter with what it was when the value was saved, so the number at which it starts means nothing.
    """

    result: Any


class Once(NamedTuple):
    """What one operator wrote: its version counter must have moved, by how much means nothing, for the same reason."""

    written: Any


def fingerprint(value: Any, contents: bool = True, versions: Any = int) -> Any:
    """Everything that can be told about a result, as something that compares equal only if the bits are the same."""
    if isinstance(value, Fresh):
        return fingerprint(value.result, contents, None)
    if isinstance(value, Once):
        return fingerprint(value.written, contents, bool)
    if isinstance(value, Tensor):
        # below a dispatch mode torch's `reshape` calls `view`, of which `_reshape_alias` is a faster spelling
        node = type(value.grad_fn).__name__.replace("ReshapeAliasBackward", "ViewBackward")
        version = versions(value._version) if versions is not None and not value.is_inference() else None
        facts: tuple[Any, ...] = (type(value).__name__, str(value.dtype), tuple(value.shape), str(value.layout), value.requires_grad,
                                  version, node)  # fmt: skip
        if value.layout == torch.strided and not value.is_nested:
            facts += value.stride(), value.storage_offset(), value.is_conj(), value.is_neg()
        return facts + content(value) if contents else facts
    if isinstance(value, dict):
        return tuple((str(k), fingerprint(v, contents, versions)) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(fingerprint(v, contents, versions) for v in value)
    if isinstance(value, (int, float, complex, str, torch.dtype, type(None))):
        return repr(value)
    return type(value).__name__


def content(tensor: Tensor) -> tuple[Any, ...]:
    """The bits of a tensor, shortened."""
    tensor = tensor.detach()
    if tensor.is_nested:
        return content(tensor.values())
    if tensor.layout == torch.sparse_coo:
        return content(tensor._indices()) + content(tensor._values())
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return content(tensor.crow_indices()) + content(tensor.col_indices()) + content(tensor.values())
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return content(tensor.ccol_indices()) + content(tensor.row_indices()) + content(tensor.values())
    if tensor.is_meta:
        return ()
    if tensor.is_quantized:
        return content(tensor.int_repr())
    return (hashlib.blake2b(bytes_of(tensor), digest_size=12).hexdigest(),)


def seeding_the_cpu_alone() -> AbstractContextManager[Any]:
    """Nothing here runs elsewhere, and for each device that is not there `torch.manual_seed` formats and keeps a traceback."""
    return mock.patch.object(torch, "manual_seed", torch.default_generator.manual_seed)


def check(subject: Subject, most: int | None = None, folder: Path | None = None) -> Report:
    """Run every program of a subject three times, and compare."""
    start = time.perf_counter()
    report = Report(subject.family, subject.name, subject.dtype)
    with tempfile.TemporaryDirectory() as own, warnings.catch_warnings(), seeding_the_cpu_alone():
        warnings.simplefilter("ignore")
        path = (folder or Path(own)) / "trace.arrow"
        todo = list(programs(subject, most))
        report.programs = len(todo)
        report.samples = sum(p.label.startswith("forward") for p in todo) or len(todo)
        plain = [attempt(p, p.inputs[0]) for p in todo]
        gc.freeze()  # what lives now need not be searched for tags when the monitor closes
        outcomes = monitored(todo, 1, path, nullcontext(), report)[0]
        for program, (result, error, state), (result2, error2, state2) in zip(todo, plain, outcomes, strict=True):
            report.raised += error is not None
            contents = excused(subject, program, "bits") is None
            one, two = (
                fingerprint((r, leaves(i)), contents)
                for r, i in ((result, program.inputs[0]), (result2, program.inputs[1]))
            )
            if error != error2:
                add(report, subject, program, "exception", f"{error2}, without the monitor {error}")
            elif one != two:
                kind = "bits below any mode" if below_any_mode(subject, most, program.label) == two else "bits"
                add(report, subject, program, kind, difference(one, two))
            elif state != state2:
                add(report, subject, program, "random state", "differs")
            if not contents:
                report.excused["bits"] = report.excused.get("bits", 0) + 1
        del plain, outcomes
        witness = CheckingMode()
        _, starts = monitored(todo, 2, path, witness, report)
        found = disagreements(witness, path)
        report.events, report.rows, report.measured, report.written = (
            found.events,
            found.rows,
            found.measured,
            found.written,
        )
        for event, kind, what in found.failures:
            at = max((i for i, first in enumerate(starts) if first <= event), default=0)
            add(
                report,
                subject,
                todo[at] if todo else Program("none", lambda _: None, []),
                kind,
                f"event {event}, {what}",
            )
    report.seconds = time.perf_counter() - start
    return report


class NoOperation(TorchDispatchMode):
    """Passes everything on."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        return func(*args, **kwargs or {})


def below_any_mode(subject: Subject, most: int | None, label: str) -> Any:
    """The fingerprint of a program below a dispatch mode that does nothing: what torch itself does differently there."""
    program = next(p for p in programs(subject, most) if p.label == label)
    with NoOperation():
        result = attempt(program, program.inputs[0])[0]
    return fingerprint((result, leaves(program.inputs[0])))


def leaves(inputs: Any) -> Any:
    """The tensors that a program was given."""
    if hasattr(inputs, "input"):
        return Once(tree_leaves((inputs.input, inputs.args, inputs.kwargs)))
    return inputs


def monitored(todo: list[Program], copy: int, path: Path, below: Any, report: Report) -> tuple[list[Any], list[int]]:
    """Run all programs in one monitor, above a mode; where in the mode's events each program began."""
    outcomes, starts = [], []
    monitor = DispatchMonitor(None, path, overwrite=True, quiet=True)
    with below, monitor:
        for program in todo:
            starts.append(len(getattr(below, "events", ())))
            outcomes.append(attempt(program, program.inputs[copy]))
    if monitor.error is not None:
        report.failures.append(Failure(f"{report.name}-{report.dtype}", "all", "recording", repr(monitor.error)))
    return outcomes, starts


def excused(subject: Subject, program: Program, kind: str) -> str | None:
    """Why a check does not apply, if it does not."""
    for variant in (program.label.split("[")[0], "*"):
        if (found := EXCEPTIONS.get((subject.name, variant))) is not None and found[0] == kind:
            return found[1]
    return None


def add(report: Report, subject: Subject, program: Program, kind: str, detail: str) -> None:
    """A failure, unless it is excused."""
    if excused(subject, program, kind) is None:
        report.failures.append(Failure(str(subject), program.label, kind, detail))
    else:
        report.excused[kind] = report.excused.get(kind, 0) + 1


def difference(one: Any, two: Any) -> str:
    """The first place where two fingerprints differ."""
    if isinstance(one, tuple) and isinstance(two, tuple) and len(one) == len(two):
        return next(difference(a, b) for a, b in zip(one, two, strict=True) if a != b)
    return f"{two}, without the monitor {one}"


# --------------------------------------------------------------------------------------------------------- reporting
def share(items: Sequence[Subject], which: str) -> list[Subject]:
    """The k-th of n equal parts, `k/n`."""
    k, n = map(int, which.split("/"))
    return list(items[k - 1 :: n])


def table(reports: Sequence[Report]) -> str:
    """Totals and failures, to be read."""
    failures = Counter((f.check, f.subject) for r in reports for f in r.failures)
    total = {
        name: sum(getattr(r, name) for r in reports)
        for name in ("samples", "programs", "raised", "events", "rows", "measured", "written")
    }
    lines = [f"{len({(r.family, r.name) for r in reports}):,} operators, {len(reports):,} with dtype, " +
             ", ".join(f"{v:,} {k}" for k, v in total.items()) + f", {sum(r.seconds for r in reports):.0f} s"]  # fmt: skip
    for (kind, subject), count in sorted(failures.items()):
        example = next(f for r in reports for f in r.failures if (f.check, f.subject) == (kind, subject))
        lines.append(f"{kind:14} {subject:40} {count:5}  {example.program}: {example.detail[:300]}")
    return "\n".join([*lines, f"{sum(failures.values()):,} failures"])


def coverage(summaries: Sequence[dict[str, Any]]) -> str:
    """docs/coverage.md from the summaries of a whole run."""
    reports = [r for summary in summaries for r in summary["reports"]]
    excused = Counter[tuple[str, str]]()
    failures = Counter[tuple[str, str, str]]()
    for r in reports:
        excused.update({(r["name"], kind): n for kind, n in r["excused"].items()})
        failures.update((r["name"], r["dtype"], f["check"]) for f in r["failures"])
    counted = ("programs", "raised", "events", "rows", "measured", "written")

    def line(label: str, chosen: list[dict[str, Any]]) -> str:
        names = len({(r["family"], r["name"]) for r in chosen})
        numbers = [names, *(sum(r[c] for r in chosen) for c in counted), sum(len(r["failures"]) for r in chosen)]
        return f"| {label} | " + " | ".join(f"{n:,}" for n in numbers) + " |"

    head = "| | operators | programs | of them raise | operator calls | rows | values measured | written | failures |"
    lines = [
        "# Every operator", "",
        "<!-- Written by `python tests/judges/operator_sweep.py --write-docs`; do not edit. -->", "",
        f"torch {summaries[0]['torch']} on CPU, {max(s['date'] for s in summaries)}. At most {summaries[0]['samples'] or 'all'} "
        "sample inputs of each variant of each operator, evenly chosen.", "",
        "Torch's own operator database (`op_db`, the `foreach_*_op_db`, `optim_db`) under the monitor. Each sample runs as up to",
        "three programs: forward and backward, in place, and into `out=`; each optimizer takes three steps in each of its",
        "implementations. A program runs without the monitor, with it, and with it above an independent witness of all bytes:", "",
        "1. the same exception with the same message, or none;",
        "2. the same bits in results, gradients and arguments; the same strides, autograd nodes, version counters, random state;",
        "3. a row for every tensor of every operator call, `written` wherever the witness saw bytes change;",
        "4. every statistic of every value: counts, min and max exactly, mean and std to 1e-6 of the largest magnitude, norm to 1e-6;",
        "5. rows with the same storage, version, offset, shape and stride saw the same bytes.", "",
        "## Counts", "", head, "|---|" + "---:|" * 8,
        *(line(dtype, [r for r in reports if r["dtype"] == dtype]) for dtype in DTYPES),
        *(line(f"`{f}`", [r for r in reports if r["family"] == f]) for f in sorted({r["family"] for r in reports})),
        line("**all**", reports), "",
        "A program that raises does so without the monitor too, with the same message: in-place variants whose result has another dtype or shape, mostly.", "",
        "## Exceptions", "",
        "What differs with the monitor and why. `bits below any mode`: a dispatch mode that does nothing gives the same bits as",
        "the monitor; torch decides above every mode, so no mode can undo it.", "",
        "| operator | variant | check | programs | reason |", "|---|---|---|---:|---|",
        *(f"| `{name}` | {'all' if variant == '*' else variant} | {kind} | {excused[name, kind]:,} | {why} |"
          for (name, variant), (kind, why) in sorted(EXCEPTIONS.items())), "",
    ]  # fmt: skip
    if failures:
        lines += ["## Failures", "", "| operator | dtype | check | times |", "|---|---|---|---:|"]
        lines += [f"| `{name}` | {dtype} | {kind} | {n:,} |" for (name, dtype, kind), n in sorted(failures.items())] + [
            ""
        ]
    return "\n".join(lines)


def main() -> int:
    """Run a share of the sweep, or write the documentation from the summaries of earlier runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", default="1/1", help="the k-th of n parts of the operators, k/n")
    parser.add_argument("--dtypes", nargs="+", default=DTYPES, choices=DTYPES)
    parser.add_argument("--ops", default="*", help="glob of names")
    parser.add_argument("--samples", type=int, help="at most so many of each variant")
    parser.add_argument("--json", type=Path, help="where to write the summary")
    parser.add_argument("--write-docs", nargs="+", type=Path, metavar="SUMMARY", help="write docs/coverage.md and stop")
    parser.add_argument("--progress", action="store_true", help="name each operator as it begins")
    args = parser.parse_args()
    if args.write_docs:
        text = coverage([json.loads(path.read_text()) for path in args.write_docs])
        (Path(__file__).parents[2] / "docs" / "coverage.md").write_text(text)
        return 0
    torch.set_num_threads(1)
    reports = []
    for subject in share(subjects(args.dtypes, args.ops), args.share):
        if args.progress:
            print(subject, end=" ", flush=True, file=sys.stderr)
        reports.append(check(subject, args.samples))
        if args.progress:
            print(f"{reports[-1].seconds:.1f} s, {len(reports[-1].failures)} failures", file=sys.stderr)
    print(table(reports))
    if args.json is not None:
        args.json.write_text(json.dumps({"torch": torch.__version__, "date": time.strftime("%Y-%m-%d"),
                                         "samples": args.samples, "reports": [asdict(r) for r in reports]}))  # fmt: skip
    return 2 if any(r.failures for r in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
