"""
The rows that the search looks at: those of events that touch memory which ever holds a non-finite or an unwritten value.

Two scans of a few columns find that memory, a third one reads the events. Of a trace without NaN, Inf and unwritten memory
next to nothing is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatchmon.reading.batches import Range
from dispatchmon.reading.forms import read_arguments
from dispatchmon.reading.trace_files import TraceFiles

FINITE_MAX = {"float16": 65504.0, "bfloat16": 3.39e38, "float32": 3.4028235e38, "float64": 1.797e308}
# Views make no values: what they show was shown when it was made, or is memory that nobody has written yet.
_VIEWS = (
    r"^aten\.(view|t|transpose|permute|expand|slice|select|split|split_with_sizes|unbind|as_strided|detach|alias|unsqueeze|"
    r"squeeze|unfold|diagonal)\."
)
ALLOCATORS = r"^aten\.(new_)?(empty(_like|_strided|_permuted)?|resize_|resize_as_)\."
_SCALER = r"^aten\._amp_"
Ints = npt.NDArray[np.int64]


@dataclass(slots=True)
class Row:
    """One tensor that one event saw: a row of the trace, with the columns that matter here."""

    event: int
    step: int
    phase: str
    module: str | None
    op: str
    arguments: str | None
    role: str | None
    arg: str | None
    written: bool
    storage: int | None
    version: int | None
    name: str | None
    dtype: str | None
    shape: tuple[int, ...] | None
    stride: tuple[int, ...] | None
    offset: int | None
    numel: int | None
    min: float | None
    max: float | None
    mean: float | None
    std: float | None
    norm: float | None
    nan: int | None
    inf: int | None
    posinf: int | None
    zero: int | None
    forward_event: int | None
    source: str | None
    duration_ns: int | None
    cells: bytes | None

    @property
    def nonfinite(self) -> int:
        """How many elements are NaN or infinite; 0 if that was not measured."""
        return (self.nan or 0) + (self.inf or 0)

    @property
    def counts(self) -> dict[str, int]:
        """How many are NaN, +Inf and -Inf."""
        posinf = self.posinf if self.posinf is not None else self.inf or 0
        return {"n": self.nan or 0, "p": posinf, "m": (self.inf or 0) - posinf}

    @property
    def magnitude(self) -> float | None:
        """Largest absolute value of a finite element."""
        return None if self.min is None or self.max is None else max(abs(self.min), abs(self.max))

    @property
    def is_float(self) -> bool:
        """Whether it can hold NaN and Inf."""
        return self.dtype is not None and ("float" in self.dtype or self.dtype.startswith("complex"))

    @property
    def placed(self) -> bool:
        """Whether its place in memory is known."""
        return self.storage is not None and self.stride is not None and self.shape is not None


COLUMNS = tuple(Row.__dataclass_fields__)


@dataclass
class Event:
    """The rows of one event."""

    rows: list[Row]

    @property
    def first(self) -> Row:
        """The row that stands for the event."""
        return self.rows[0]

    @cached_property
    def inputs(self) -> list[Row]:
        return [row for row in self.rows if row.role == "input"]

    @cached_property
    def outputs(self) -> list[Row]:
        return [row for row in self.rows if row.role == "output"]

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """The operator's non-tensor arguments by name."""
        return read_arguments(self.first.arguments, self.first.event)

    @property
    def constants(self) -> str:
        """Which of NaN ("n") and Inf ("i") are among the operator's own numbers."""
        words = [word for value in self.arguments.values() for word in (value if isinstance(value, list) else [value])]
        return "n" * ("nan" in words) + "i" * ("inf" in words or "-inf" in words)

    @property
    def raised(self) -> bool:
        """Whether the operator gave no result: it raised."""
        return not self.outputs and self.first.duration_ns is None

    @property
    def operation(self) -> str:
        """What it calculates: `add` of `aten._foreach_add_.List`."""
        return operation(self.first.op)

    @property
    def non_finite_argument(self) -> str | None:
        """The operator's own number that is NaN or Inf, by its name, if the operator calculates with it."""
        if self.operation not in _CALCULATES and "_fused_" not in self.first.op:
            return None
        for name, value in self.arguments.items():
            if _NOT_FINITE.intersection(map(str, value if isinstance(value, list) else [value])):
                return name
        return None

    @property
    def allocates(self) -> bool:
        """Whether its results are memory that is not written yet."""
        return self.first.op.startswith(_EMPTY) and "fill_value" not in self.arguments


def operation(op: str) -> str:
    """`add` of `aten._foreach_add_.List`."""
    return op.split(".")[1].replace("_foreach_", "").rstrip("_") if "." in op else op


_NOT_FINITE = frozenset({"nan", "inf", "-inf"})
_CALCULATES = frozenset(
    "add sub rsub mul div true_divide pow addcmul addcdiv lerp addmm addmv addbmm baddbmm addr fmod remainder".split()
)
_EMPTY = ("aten.empty", "aten.new_empty", "aten.resize_")


@dataclass
class Wanted:
    """What the first scans found out about one rank."""

    storages: set[int]  # that ever hold a non-finite value, or were allocated unwritten
    last: dict[int, int]  # event that touches each of them last
    losses: set[tuple[int, int]]  # storage and version of the values whose backward pass was started
    tensors: int = 0  # rows of floating values
    unmeasured: int = 0  # of these, how many have no counts
    largest: Row | None = None
    end: int = -1  # the last operator
    trained: int = -1  # the last operator of an optimizer


def _numbers(column: pa.Array, null: int = -1) -> Ints:
    found: Ints = column.fill_null(null).to_numpy(zero_copy_only=False)
    return found


def survey(trace: TraceFiles, rank: int, on_progress: Callable[[float], None] | None = None) -> Wanted:
    """Find the memory that matters, and the losses."""
    storages: set[int] = set()
    losses: set[tuple[int, int]] = set()
    tensors = unmeasured = 0
    end = trained = -1
    largest: tuple[float, pa.RecordBatch, int] | None = None
    columns = [
        "kind",
        "event",
        "op",
        "phase",
        "role",
        "storage",
        "version",
        "dtype",
        "nan",
        "inf",
        "min",
        "max",
        "numel",
        "written",
    ]
    columns += ["step", "module", "source", "name", "arg", "shape"]
    for batch in trace.scan(columns, ranks=(rank,), on_progress=on_progress):
        if not batch.num_rows:
            continue
        column = batch.column
        is_op = pc.equal(column("kind"), "op")
        end = max(end, pc.max(column("event").filter(is_op)).as_py() or 0)
        optimizing = pc.and_(is_op, pc.equal(column("phase"), "optimizer").fill_null(False))
        trained = max(trained, pc.max(column("event").filter(optimizing)).as_py() or -1)
        real = pc.and_(is_op, pc.match_substring_regex(column("dtype").fill_null(""), "float|complex"))
        counted = pc.or_kleene(column("nan").is_valid(), column("inf").is_valid())
        tensors += real.true_count
        unmeasured += pc.and_(real, pc.invert(counted)).true_count
        bad = (_numbers(column("nan"), 0) > 0) | (_numbers(column("inf"), 0) > 0)
        bad &= is_op.to_numpy(zero_copy_only=False)
        fresh = pc.and_(
            pc.match_substring_regex(column("op"), ALLOCATORS), pc.equal(column("role"), "output").fill_null(False)
        )
        storage = _numbers(column("storage"))
        found = bad | pc.and_(fresh, real).to_numpy(zero_copy_only=False)
        storages.update(np.unique(storage[found]).tolist())
        magnitude = pc.max_element_wise(pc.abs(column("min")), pc.abs(column("max")))
        # What a write finds is an earlier result, and shown there, or memory that nobody has written (as in summary/find.py).
        found_by_a_write = pc.and_(column("written"), pc.equal(column("role"), "input").fill_null(False))
        made = pc.and_(real, pc.invert(pc.or_(found_by_a_write, pc.match_substring_regex(column("op"), _VIEWS))))
        magnitude = pc.if_else(made, magnitude, None).fill_null(-1.0).to_numpy(zero_copy_only=False)
        at = int(magnitude.argmax())
        if magnitude[at] >= 0 and (largest is None or magnitude[at] > largest[0]):
            largest = float(magnitude[at]), batch.slice(at, 1), at
        ones = pc.and_(pc.equal(column("op"), "aten.ones_like.default"), pc.equal(column("phase"), "forward"))
        ones = pc.and_(ones, pc.equal(column("role"), "input").fill_null(False)).to_numpy(zero_copy_only=False)
        phases = column("phase").to_pylist() if ones.any() else []
        for i in np.flatnonzero(ones).tolist():  # `backward()` starts with the gradient of the loss: ones
            follows = phases[i + 2] if i + 2 < len(phases) else "backward"
            if follows != "forward" and batch["numel"][i].as_py() == 1:
                losses.add((int(storage[i]), int(batch["version"][i].as_py() or 0)))
    storages.discard(-1)
    wanted = Wanted(storages, {}, losses, tensors, unmeasured, end=end, trained=trained)
    if largest is not None:
        wanted.largest = _row(largest[1].to_pylist()[0])
    return wanted


def _row(values: dict[str, Any]) -> Row:
    """A row of which only some columns were read."""
    known = {**dict.fromkeys(COLUMNS), **{k: v for k, v in values.items() if k in COLUMNS}}
    return Row(**known)


def last_touches(trace: TraceFiles, rank: int, wanted: Wanted) -> None:
    """Note which event touches each of the storages last, so that what is known of it can be dropped then."""
    known = np.sort(np.fromiter(wanted.storages, np.int64))
    last = np.full(len(known), -1, np.int64)
    for batch in trace.scan(["event", "storage"], ranks=(rank,)):
        storage = _numbers(batch.column("storage"))
        at = np.minimum(np.searchsorted(known, storage), len(known) - 1)
        hit = known[at] == storage
        np.maximum.at(last, at[hit], _numbers(batch.column("event"))[hit])
    wanted.last = dict(zip(known.tolist(), last.tolist(), strict=True))


def events(
    trace: TraceFiles, rank: int, followed: set[int], within: Mapping[str, Range] | None = None
) -> Iterator[Event]:
    """
    The events that touch one of these storages, in order.

    The set may grow while the events are read: what touches a new member from then on comes too. Of batches outside the
    ranges `within` nothing comes.
    """
    pending: list[Row] = []
    for batch in trace.scan(["kind", *COLUMNS], ranks=(rank,), within=within):
        if not batch.num_rows:
            continue
        storage, number = _numbers(batch.column("storage")), _numbers(batch.column("event"))
        is_op = pc.equal(batch.column("kind"), "op").to_numpy(zero_copy_only=False)
        scaler = pc.match_substring_regex(batch.column("op"), _SCALER).to_numpy(zero_copy_only=False)
        known: set[int] = set(followed)
        hit = (np.isin(storage, np.fromiter(known, np.int64)) | scaler) & is_op
        starts = np.flatnonzero(np.diff(number, prepend=number[0] - 1))
        ends = np.append(starts[1:], len(number))
        if pending:
            if number[0] == pending[0].event:
                pending += _rows(batch, 0, int(ends[0]))
                starts, ends = starts[1:], ends[1:]
                if not len(starts):
                    continue
            yield Event(pending)
            pending = []
        touched = np.logical_or.reduceat(hit, starts) if len(starts) else np.zeros(0, bool)
        at = -1
        while True:
            left = np.flatnonzero(touched[at + 1 :])
            if not len(left):
                break
            at += 1 + int(left[0])
            rows = _rows(batch, int(starts[at]), int(ends[at]))
            if at == len(starts) - 1:
                pending = rows
                break
            yield Event(rows)
            for new in followed - known if len(followed) != len(known) else ():
                touched |= np.logical_or.reduceat((storage == new) & is_op, starts)
                known.add(new)
    if pending:
        yield Event(pending)


def _rows(batch: pa.RecordBatch, start: int, end: int) -> list[Row]:
    part = batch.slice(start, end - start)
    columns = [part.column(name).to_pylist() for name in COLUMNS]
    rows = [Row(*values) for values in zip(*columns, strict=True)]
    for row in rows:
        row.shape = None if row.shape is None else tuple(row.shape)
        row.stride = None if row.stride is None else tuple(row.stride)
    return rows


def is_finite(value: float | None) -> bool:
    """Whether a number is there and finite."""
    return value is not None and math.isfinite(value)


def events_by_number(trace: TraceFiles, rank: int, numbers: set[int]) -> dict[int, Event]:
    """Look up events."""
    return {event.first.event: event for event in _events_in(trace, rank, numbers)} if numbers else {}


def events_between(trace: TraceFiles, rank: int, start: int, stop: int) -> list[Event]:
    """The events from `start` up to, not including, `stop`."""
    return list(_events_in(trace, rank, range(max(0, start), stop)))


def _events_in(trace: TraceFiles, rank: int, numbers: set[int] | range) -> Iterator[Event]:
    wanted = np.array(sorted(numbers), np.int64)
    pending: list[Row] = []
    for batch in trace.scan(["kind", *COLUMNS], ranks=(rank,)):
        number = _numbers(batch.column("event"))
        hit = np.isin(number, wanted) & pc.equal(batch.column("kind"), "op").to_numpy(zero_copy_only=False)
        if not hit.any():
            continue
        for row in _rows(batch.filter(pa.array(hit)), 0, int(hit.sum())):
            if pending and row.event != pending[0].event:
                yield Event(pending)
                pending = []
            pending.append(row)
    if pending:
        yield Event(pending)


def parameters_of(trace: TraceFiles, rank: int) -> frozenset[str]:
    """The names of the model's parameters."""
    described = (p for file in trace.files if file.rank == rank for p in file.metadata.get("parameters") or ())
    return frozenset(p["name"] for p in described if isinstance(p, dict) and "name" in p)
