"""
The sums of a summary, taken up batch by batch: what is kept grows with the groups, their steps and ranks, not with the rows.

What depends on a word (is it a floating dtype, does the operator overwrite what it finds) is asked once for each word of a
batch; a row costs additions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatchmon.analysis.nonfinite.unwritten_rows import OVERWRITE
from dispatchmon.reading.columns import Flags, Ints, Words, flags, numbers

Unwritten = frozenset[tuple[int, int, str | None, str | None]]  # rows by rank, event, role and argument
Floats = npt.NDArray[np.float64]
MUTATIONS = ("inplace", "out", "other", "undeclared")
_REAL = "float|^complex"  # of integers, indices and counters, the largest says nothing
_COUNTS = ("calls", "writes", "rows", "tensors", "without_statistics", *MUTATIONS)
_SUMS = ("time_ns", "nan", "inf")
_LIMB = 32  # bits: sums of half a number are exact in the float64 in which numpy counts
_MOST_PAIRS = 1 << 20  # that are kept before those that are there twice are left out


@dataclass
class Rows:
    """One batch, as a tally needs it."""

    kind: Words
    by: Words
    step: Ints
    rank: Ints
    event: Ints
    first: Flags  # of their event
    counts: dict[str, Flags]
    sums: dict[str, tuple[Ints, Flags]]  # and which rows have one
    magnitude: Floats  # -1 without one
    read: Flags
    largest: Flags  # which may be the largest value of a trace
    bad: Flags  # which may be its first that is not finite

    @classmethod
    def of(cls, batch: pa.RecordBatch, by: str, unwritten: Unwritten = frozenset()) -> Rows:
        """Look at each column once. What the `unwritten` rows show are no numbers."""
        column = batch.column
        kind, op, dtype, mutation, role = (Words(column(c)) for c in ("kind", "op", "dtype", "mutation", "role"))
        first, tensor = (flags(column(c).is_valid()) for c in ("arguments", "dtype"))
        found = flags(column("written")) & role.equal("input")  # by a write, which is an earlier result
        read = ~(found & (mutation.equal("out") | op.matching(rf"^aten\.({'|'.join(OVERWRITE)})\.")))
        binds = op.matching(r"^aten\.set_\.")  # a tensor to other memory, of which it touches nothing: bytes, of a copy to come
        shown = ~(_among(batch, unwritten) | binds)
        has = {name: flags(column(name).is_valid()) for name in ("duration_ns", "nan", "inf")}
        value = {name: numbers(column(name), 0) for name in has}
        low, high = column("min"), column("max")
        nothing = ~(has["nan"] | has["inf"] | flags(low.is_valid()) | flags(high.is_valid()))
        magnitude = pc.max_element_wise(pc.abs(low), pc.abs(high)).fill_null(-1.0).to_numpy()
        return cls(
            kind=kind,
            by={"op": op, "dtype": dtype}.get(by) or Words(column(by)),
            step=numbers(column("step")),
            rank=numbers(column("rank")),
            event=numbers(column("event")),
            first=first,
            counts={
                "calls": first,
                "writes": first & ~mutation.equal("none"),
                "rows": np.ones(len(first), bool),
                "tensors": tensor,
                "without_statistics": tensor & nothing,
                **{name: first & mutation.equal(name) for name in MUTATIONS},
            },
            sums={
                "time_ns": (value["duration_ns"], has["duration_ns"] & first),
                "nan": (value["nan"], has["nan"] & read & shown),
                "inf": (value["inf"], has["inf"] & read & shown),
            },
            magnitude=magnitude,
            read=read & shown,
            largest=dtype.matching(_REAL) & ~found & shown & (magnitude >= 0),
            bad=((value["nan"] > 0) | (value["inf"] > 0)) & ~found & shown,
        )


class Tally:
    """The events of one kind by their keys."""

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}  # of the keys
        self.counts = {name: np.zeros(0, np.int64) for name in (*_COUNTS, *_SUMS)}  # of a sum: how many were added
        self.sums = {(name, half): np.zeros(0, np.int64) for name in _SUMS for half in ("low", "high")}
        self.magnitude: Floats = np.zeros(0)
        self.pairs: dict[str, list[Ints]] = {"steps": [], "ranks": []}  # which key was in which of them, as one number
        self.first: dict[int, tuple[int, int]] = {}  # by rank: step and event of the first value that is not finite
        self.largest = -1.0
        self.largest_at: dict[int, tuple[int, int]] = {}  # by rank: step and event of the first such value

    def add(self, rows: Rows, among: Flags) -> None:
        """Add some rows of a batch."""
        keys = rows.by.words.to_pylist()
        here = rows.by.at[among]
        here = np.where(here < 0, len(keys), here)  # of null
        n = len(keys) + 1
        ids = np.zeros(n, np.int64)
        used = np.flatnonzero(np.bincount(here, minlength=n))
        ids[used] = [self.numbers.setdefault((*keys, None)[i], len(self.numbers)) for i in used.tolist()]
        self._grow()
        for name, counted in rows.counts.items():
            self.counts[name][ids[used]] += np.bincount(here[counted[among]], minlength=n)[used]
        for name, (values, valid) in rows.sums.items():
            added, at = values[among & valid], here[valid[among]]
            self.counts[name][ids[used]] += np.bincount(at, minlength=n)[used]
            self.sums[name, "low"][ids[used]] += _summed(at, added & ((1 << _LIMB) - 1), n)[used]
            if added.max(initial=0) >> _LIMB:
                self.sums[name, "high"][ids[used]] += _summed(at, added >> _LIMB, n)[used]
        magnitude = rows.magnitude[among & rows.read]
        np.maximum.at(self.magnitude, ids[here[rows.read[among]]], magnitude)
        for name, column in (("steps", rows.step), ("ranks", rows.rank)):
            self._pair(name, ids[here], column[among])
        self._see(rows, among)

    def totals(self) -> dict[str, Any]:
        """All keys together."""
        found: dict[str, Any] = {name: int(self.counts[name].sum()) for name in _COUNTS}
        for name in _SUMS:
            sums = [self._sum(name, i) for i in range(len(self.numbers))]
            found[name] = sum(s for s in sums if s is not None) if any(s is not None for s in sums) else None
        found["time_ns"] = found["time_ns"] or 0
        for name, pairs in self.pairs.items():
            found[name] = len(np.unique(np.concatenate(pairs) & ((1 << _LIMB) - 1)))
        most = float(self.magnitude.max(initial=-1.0))
        return {**found, "magnitude": most if most >= 0 else None}

    def groups(self) -> list[dict[str, Any]]:
        """Each key by itself."""
        return [
            {
                "key": key,
                **{name: int(self.counts[name][i]) for name in _COUNTS},
                **{name: self._sum(name, i) for name in _SUMS},
                "time_ns": self._sum("time_ns", i) or 0,
                "magnitude": float(self.magnitude[i]) if self.magnitude[i] >= 0 else None,
            }
            for key, i in self.numbers.items()
        ]

    def _grow(self) -> None:
        more = len(self.numbers) - len(self.magnitude)
        if more:
            for table in (self.counts, self.sums):
                for name, column in table.items():
                    table[name] = np.append(column, np.zeros(more, np.int64))  # type: ignore[index]
            self.magnitude = np.append(self.magnitude, np.full(more, -1.0))

    def _sum(self, name: str, i: int) -> int | None:
        if not self.counts[name][i]:
            return None
        return int(self.sums[name, "low"][i]) + (int(self.sums[name, "high"][i]) << _LIMB)

    def _pair(self, name: str, ids: Ints, other: Ints) -> None:
        pairs = self.pairs[name]
        if len(other) and other[0] == other[-1] and (other == other[0]).all():
            ids, other = np.flatnonzero(np.bincount(ids)), other[:1]
        pairs.append(np.unique(ids << _LIMB | other))
        if sum(map(len, pairs)) > 2 * _MOST_PAIRS:
            pairs[:] = [np.unique(np.concatenate(pairs))]

    def _see(self, rows: Rows, among: Flags) -> None:
        """Note where, on each rank, the first value that is not finite is, and the first of the largest ones."""

        def note(at: Ints, places: dict[int, tuple[int, int]]) -> None:
            ranks, where = np.unique(rows.rank[at], return_index=True)
            for rank, i in zip(ranks.tolist(), at[where].tolist(), strict=True):
                places.setdefault(rank, (int(rows.step[i]), int(rows.event[i])))

        note(np.flatnonzero(among & rows.bad), self.first)
        magnitude = np.where(among & rows.largest, rows.magnitude, -1.0)
        largest = float(magnitude.max(initial=-1.0))
        if largest > self.largest:
            self.largest, self.largest_at = largest, {}
        if largest >= 0 and largest == self.largest:
            note(np.flatnonzero(magnitude == largest), self.largest_at)


def _among(batch: pa.RecordBatch, rows: Unwritten) -> Flags:
    """Which rows of a batch are among these."""
    here = np.zeros(batch.num_rows, bool)
    if rows:
        events = np.fromiter({event for _, event, _, _ in rows}, np.int64)
        at = np.flatnonzero(np.isin(numbers(batch.column("event")), events))
        names = (batch.column(name).take(pa.array(at)).to_pylist() for name in ("rank", "event", "role", "arg"))
        here[at] = [row in rows for row in zip(*names, strict=True)]
    return here


def _summed(at: Ints, values: Ints, n: int) -> Ints:
    return np.bincount(at, weights=values, minlength=n).astype(np.int64)
