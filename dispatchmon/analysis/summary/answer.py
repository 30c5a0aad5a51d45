"""
The answer of `summarize`: groups, totals, and what to look at first.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from dispatchmon.analysis.answer import Answer
from dispatchmon.words.documents import document
from dispatchmon.words.figures import count, counted, duration, number
from dispatchmon.words.names import in_module, module_name
from dispatchmon.words.tables import Cells

_TITLES = {"op": "operator", "source": "source line"}
_NO_KEY = {"dtype": "(no tensor)", "source": "(unknown)"}
_NOUNS = {"op": "operator call", "module": "module call", "parameter": "parameter record"}
_NUMBERS = ("calls", "writes", "time_ns", "rows", "magnitude", "nan", "inf")


@dataclass(frozen=True)
class Group:
    """
    The events with one key, and the values they saw.

    Attributes:
        key: the operator, module, phase, step, dtype or source line; None where an event has none. By dtype, an event
            belongs to the dtype of its first tensor, a value to its own.
        calls: number of events.
        writes: how many of them wrote over memory (`mutation` is not `none`).
        time_ns: their durations on the host, in nanoseconds, without the monitor's work.
        rows: number of rows, most of which are one value seen.
        magnitude: largest absolute value of a finite element; None if no value was measured.
        nan: NaN elements over all rows; None if none was counted. A value that is seen twice counts twice.
        inf: the same for infinite elements.
    """

    key: str | int | None
    calls: int
    writes: int
    time_ns: int
    rows: int
    magnitude: float | None
    nan: int | None
    inf: int | None


@dataclass(frozen=True)
class Totals:
    """The same numbers over everything that was asked about; `groups` is the number of groups before `top` cut them."""

    calls: int = 0
    writes: int = 0
    time_ns: int = 0
    rows: int = 0
    magnitude: float | None = None
    nan: int | None = None
    inf: int | None = None
    steps: int = 0
    ranks: int = 0
    groups: int = 0


@dataclass(frozen=True)
class Writes:
    """Number of events that wrote over memory, by the row's `mutation`."""

    inplace: int = 0
    out: int = 0
    other: int = 0
    undeclared: int = 0


@dataclass(frozen=True)
class Sighting:
    """One value where it was seen: one row of the trace."""

    event: int
    rank: int
    step: int
    phase: str
    module: str | None
    op: str
    source: str | None
    role: str
    arg: str | None
    name: str | None
    dtype: str | None
    shape: tuple[int, ...] | None
    magnitude: float | None
    nan: int | None
    inf: int | None
    deliberate: bool = False  # a NaN or Inf that the operator was told to fill in, as masks do


@dataclass(frozen=True)
class StandsOut:
    """
    What to look at first.

    Attributes:
        writes: the events that wrote over memory, by kind of write.
        first_nonfinite: the first value in order of events that held a NaN or Inf. This is where one was first
            *seen*; its origin may be a value that was not recorded.
        largest: the first value, of those with a floating or complex dtype, with the largest finite magnitude.
        tensors: number of rows that describe a tensor.
        without_statistics: how many of these have neither extremes nor counts, so that nothing is known of their
            numbers.
    """

    writes: Writes
    first_nonfinite: Sighting | None
    largest: Sighting | None
    tensors: int
    without_statistics: int


@dataclass(frozen=True, repr=False)
class Summary(Answer):
    """
    The answer of `summarize`.

    Attributes:
        by: what the events are grouped by.
        kind: what was counted: `op`, or for a trace without operators `module` or `parameter`.
        groups: the groups, of which `top` may have cut some.
        totals: the same numbers over everything.
        stands_out: what to look at first.
        warnings: what must be known before trusting the trace, one sentence each.
    """

    by: str
    kind: str
    groups: tuple[Group, ...]
    totals: Totals
    stands_out: StandsOut
    warnings: tuple[str, ...] = ()

    items = "groups"

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.by, *_NUMBERS)

    def to_dict(self) -> dict[str, Any]:
        return document(
            {
                "format": 1,
                "by": self.by,
                "kind": self.kind,
                "groups": [
                    {self.by: group.key, **{name: getattr(group, name) for name in _NUMBERS}} for group in self.groups
                ],
                "totals": asdict(self.totals),
                "stands_out": asdict(self.stands_out),
                "warnings": self.warnings,
            }
        )

    def table(self) -> Cells:
        rows = []
        for group in self.groups:
            key = str(group.key) if group.key is not None else _NO_KEY.get(self.by)
            rows.append(
                [
                    module_name(key) if self.by == "module" else str(key),
                    count(group.calls),
                    count(group.writes),
                    duration(group.time_ns),
                    "-" if group.magnitude is None else number(group.magnitude),
                    "-" if group.nan is None else count(group.nan),
                    "-" if group.inf is None else count(group.inf),
                ]
            )
        alarming = frozenset(
            (row, column)
            for row, group in enumerate(self.groups)
            for column, seen in ((5, group.nan), (6, group.inf))
            if seen
        )
        titles = (_TITLES.get(self.by, self.by), "calls", "writes", "time", "largest", "NaN", "Inf")
        return Cells(titles, rows, alarming=alarming)

    def closing(self) -> list[str]:
        totals, out = self.totals, self.stands_out
        if not totals.calls:
            return ["No operator, module or parameter matches."]
        said = []
        if len(self.groups) < totals.groups:
            said += [f"{count(len(self.groups))} of {count(totals.groups)} groups are shown; --top 0 shows all.", ""]
        on_ranks = f" on {counted(totals.ranks, 'rank')}" if totals.ranks > 1 else ""
        said.append(
            f"{counted(totals.calls, _NOUNS[self.kind])} in {counted(totals.steps, 'step')}{on_ranks}, "
            f"{duration(totals.time_ns)}. {_writes(self)}"
        )
        said.append(_numbers(self))
        if out.without_statistics:
            have = "has" if out.without_statistics == 1 else "have"
            said.append(
                f"{count(out.without_statistics)} of {counted(out.tensors, 'value')} {have} no statistics: "
                "whether they hold NaN or Inf is unknown."
            )
        return said

    def gist(self) -> str:
        totals = self.totals
        if not totals.calls:
            return "nothing matches"
        seen = [f"{count(n)} {name}" for name, n in (("NaN", totals.nan), ("Inf", totals.inf)) if n]
        return (
            f"{counted(totals.calls, _NOUNS[self.kind])} in {counted(totals.steps, 'step')}, "
            f"{count(len(self.groups))} of {counted(totals.groups, 'group')} by {self.by}, "
            f"{counted(totals.writes, 'write')}" + (f", {' and '.join(seen)}" if seen else "")
        )


def _writes(answer: Summary) -> str:
    if not answer.totals.writes:
        return "Nothing was written in place."
    kinds = [f"{count(n)} {kind}" for kind, n in asdict(answer.stands_out.writes).items() if n]
    return f"{counted(answer.totals.writes, 'write')} in place ({', '.join(kinds)})."


def _numbers(answer: Summary) -> str:
    """Say in one or three sentences what is known of the values: NaN, Inf, and the largest magnitude."""
    totals, first, largest = answer.totals, answer.stands_out.first_nonfinite, answer.stands_out.largest
    largest_is = (
        f"the largest magnitude is {number(largest.magnitude or 0)} ({largest.op} {in_module(largest.module)}, "
        f"step {count(largest.step)})."
        if largest
        else "no magnitude was measured."
    )
    if first and first.deliberate:
        return (
            f"NaN or Inf was first seen in {_sighting(first)}. It was filled in on purpose there, as masks do: "
            f"`dispatchmon nonfinite` says whether any NaN or Inf did harm. Of the finite elements {largest_is}"
        )
    if first:
        origin = "`dispatchmon nonfinite` looks for the origin" if answer.kind == "op" else "that only operators show"
        return (
            f"NaN or Inf was first seen in {_sighting(first)}. That is where it was seen, not necessarily where it was "
            f"made: {origin}. Of the finite elements {largest_is}"
        )
    if totals.nan is None and totals.inf is None:
        return f"NaN and Inf were not counted in this trace; {largest_is}"
    if totals.nan is None:
        return f"No Inf was seen (NaN was not counted); {largest_is}"
    if totals.inf is None:
        return f"No NaN was seen (Inf was not counted); {largest_is}"
    return f"No NaN or Inf was seen; {largest_is}"


def _sighting(first: Sighting) -> str:
    held = [f"{count(n)} {name}" for name, n in (("NaN", first.nan), ("Inf", first.inf)) if n]
    where = f" at {first.source}" if first.source else ""
    return (
        f"{first.role} {first.arg} of {first.op} {in_module(first.module)} ({' and '.join(held)}; "
        f"step {count(first.step)}, {first.phase}, event {count(first.event)}{where})"
    )
