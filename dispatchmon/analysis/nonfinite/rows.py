"""
The rows that the search looks at: those of events that touch memory which ever holds a non-finite or an unwritten value.

One scan of a few columns finds that memory, a second one reads the events, and all columns only of the batches that have
some. Of a trace without NaN, Inf and unwritten memory next to nothing is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dispatchmon.reading.columns import Flags, Ints, Words, numbers
from dispatchmon.reading.contents import Test, Within
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

_NO_EVENT: Ints = np.zeros(0, np.int64)


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
    scaler: Ints = field(default_factory=lambda: _NO_EVENT)  # events of GradScaler's operators, in order
    trained: int = -1  # the last operator of an optimizer


class _Touched:
    """The storages that matter, and which event touches each of them last."""

    def __init__(self) -> None:
        self.storages, self.last = np.zeros(0, np.int64), np.zeros(0, np.int64)

    def see(self, storage: Ints, event: Ints, matters: Flags) -> None:
        """Look at the rows of a batch; those that matter begin to matter in it."""
        new = np.setdiff1d(storage[matters & (storage >= 0)], self.storages)
        if len(new):
            place = np.searchsorted(self.storages, new)
            self.storages = np.insert(self.storages, place, new)
            self.last = np.insert(self.last, place, -1)
        if len(self.storages):
            at = np.minimum(np.searchsorted(self.storages, storage), len(self.storages) - 1)
            hit = self.storages[at] == storage
            np.maximum.at(self.last, at[hit], event[hit])


_SURVEYED = ("kind", "event", "op", "phase", "role", "storage", "dtype", "nan", "inf", "min", "max", "written")
_TOLD = (*_SURVEYED, "step", "module", "source", "name", "arg", "shape", "numel", "version")  # of the largest value


def survey(trace: TraceFiles, rank: int, on_progress: Callable[[float], None] | None = None) -> Wanted:
    """Find the memory that matters, who touches it last, and the losses."""
    touched = _Touched()
    scaler: list[Ints] = []
    tensors = unmeasured = 0
    end = trained = -1
    largest: tuple[float, dict[str, Any]] | None = None
    for batch in trace.scan(_SURVEYED, ranks=(rank,), on_progress=on_progress):
        if not batch.num_rows:
            continue
        column = batch.column
        event, storage = numbers(column("event")), numbers(column("storage"))
        op, role = Words(column("op")), Words(column("role"))
        is_op = Words(column("kind")).equal("op")
        end = max(end, int(event[is_op].max(initial=0)))
        optimizing = is_op & Words(column("phase")).equal("optimizer")
        trained = max(trained, int(event[optimizing].max(initial=-1)))
        real = is_op & Words(column("dtype")).matching("float|complex")
        unknown = column("nan").is_null().to_numpy(False) & column("inf").is_null().to_numpy(False)
        tensors += int(real.sum())
        unmeasured += int((real & unknown).sum())
        bad = is_op & ((numbers(column("nan"), 0) > 0) | (numbers(column("inf"), 0) > 0))
        fresh = real & op.matching(ALLOCATORS) & role.equal("output")
        touched.see(storage, event, bad | fresh)
        # What a write finds is an earlier result, and shown there, or memory that nobody has written (as in summary/find.py).
        is_input = role.equal("input")
        found_by_a_write = column("written").to_numpy(False).astype(bool) & is_input
        made = real & ~(found_by_a_write | op.matching(_VIEWS))
        magnitude = pc.max_element_wise(pc.abs(column("min")), pc.abs(column("max"))).fill_null(-1.0).to_numpy()
        magnitude = np.where(made, magnitude, -1.0)
        at = int(magnitude.argmax())
        if magnitude[at] >= 0 and (largest is None or magnitude[at] > largest[0]):
            largest = float(magnitude[at]), batch.slice(at, 1).to_pylist()[0]
        scaler.append(event[op.matching(_SCALER)])
    last = dict(zip(touched.storages.tolist(), touched.last.tolist(), strict=True))
    wanted = Wanted(set(last), last, _losses(trace, rank), tensors, unmeasured, end=end, trained=trained)
    wanted.scaler = np.concatenate([wanted.scaler, *scaler])
    if largest is not None:
        wanted.largest = _told(trace, rank, largest[1])
    return wanted


_ONES = "aten.ones_like.default"


def _losses(trace: TraceFiles, rank: int) -> set[tuple[int, int]]:
    """The values whose backward pass was started: `backward()` starts with the gradient of the loss, ones."""
    losses: set[tuple[int, int]] = set()
    columns = ("op", "role", "phase", "numel", "storage", "version")
    for batch in trace.scan(columns, ranks=(rank,), within={"op": frozenset({_ONES})}):
        ones = Words(batch.column("op")).equal(_ONES) & Words(batch.column("role")).equal("input")
        for i in np.flatnonzero(ones).tolist():
            phase, *following = batch["phase"][i : i + 3].to_pylist()
            follows = following[1] if len(following) > 1 else "backward"
            row = {name: batch[name][i].as_py() for name in ("numel", "storage", "version")}
            if phase == "forward" and follows != "forward" and row["numel"] == 1:
                losses.add((-1 if row["storage"] is None else row["storage"], row["version"] or 0))
    return losses


def _told(trace: TraceFiles, rank: int, seen: dict[str, Any]) -> Row:
    """A row of which the survey has seen some columns, with those that tell where it is."""
    at = np.array([seen["event"]], np.int64)
    for batch in trace.scan(_TOLD, ranks=(rank,), within={"event": at}):
        for row in batch.filter(pc.equal(batch.column("event"), seen["event"])).to_pylist():
            if row.items() >= seen.items():
                return _row(row)
    return _row(seen)


def _row(values: dict[str, Any]) -> Row:
    """A row of which only some columns were read."""
    known = {**dict.fromkeys(COLUMNS), **{k: v for k, v in values.items() if k in COLUMNS}}
    return Row(**known)


def events(
    trace: TraceFiles, rank: int, followed: set[int], scaler: Ints = _NO_EVENT, within: Within | None = None
) -> Iterator[Event]:
    """
    The events that touch one of these storages, and those of a GradScaler, in order.

    The set may grow while the events are read: what touches a new member from then on comes too. Of batches outside the
    ranges `within` nothing comes.
    """
    pending: list[Row] = []

    def hits(batch: pa.RecordBatch) -> Flags:
        storage, event = numbers(batch.column("storage")), numbers(batch.column("event"))
        return np.asarray(np.isin(storage, np.fromiter(followed, np.int64)) | np.isin(event, scaler))

    def needs(batch: pa.RecordBatch) -> bool:
        goes_on = bool(pending and batch.num_rows) and batch.column("event")[0].as_py() == pending[0].event
        return goes_on or bool(hits(batch).any())

    test = Test(("storage", "event"), needs)
    for batch in trace.scan(["kind", *COLUMNS], ranks=(rank,), within=within, test=test):
        if not batch.num_rows:
            continue
        storage, number = numbers(batch.column("storage")), numbers(batch.column("event"))
        is_op = Words(batch.column("kind")).equal("op")
        known: set[int] = set(followed)
        hit = hits(batch) & is_op
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


def events_by_number(trace: TraceFiles, rank: int, wanted: set[int]) -> dict[int, Event]:
    """Look up events."""
    return {event.first.event: event for event in _events_in(trace, rank, wanted)} if wanted else {}


def events_between(trace: TraceFiles, rank: int, start: int, stop: int) -> list[Event]:
    """The events from `start` up to, not including, `stop`."""
    return list(_events_in(trace, rank, range(max(0, start), stop)))


def _events_in(trace: TraceFiles, rank: int, wanted: set[int] | range) -> Iterator[Event]:
    among = np.array(sorted(wanted), np.int64)
    pending: list[Row] = []
    for batch in trace.scan(["kind", *COLUMNS], ranks=(rank,), within={"event": among}):
        number = numbers(batch.column("event"))
        hit = np.isin(number, among) & pc.equal(batch.column("kind"), "op").to_numpy(zero_copy_only=False)
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
