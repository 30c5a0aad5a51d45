"""
What the answer of `nonfinite` is made of: events, and what is said of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["made", "turned", "external", "deliberate"]


@dataclass(frozen=True)
class Place:
    """Where something happened: an event of the trace."""

    event: int
    rank: int
    step: int
    phase: str
    op: str
    module: str | None
    source: str | None


@dataclass(frozen=True)
class Value:
    """A tensor that an operator saw or made, with its statistics (over the finite elements)."""

    arg: str | None
    name: str | None
    dtype: str | None
    shape: tuple[int, ...] | None
    min: float | None
    max: float | None
    mean: float | None
    std: float | None
    norm: float | None
    nan: int | None
    inf: int | None
    posinf: int | None
    zero: int | None


@dataclass(frozen=True)
class Link(Place):
    """One event of a chain, and in words what it did."""

    message: str


@dataclass(frozen=True)
class Reached(Place):
    """The first loss, gradient, parameter, buffer, optimizer state or unread end that held it; its name, if it has one."""

    name: str | None


@dataclass(frozen=True)
class Origin(Place):
    """
    Where non-finite values began that reached something that matters.

    Attributes:
        kind: `made` from finite values; `turned` from Inf into NaN; `external`: already there when it was first read;
            `deliberate`: a constant of the operator, which went where it should not.
        what: `nan` or `inf`.
        inputs_finite: whether everything that the operator read was finite.
        inputs: what it read.
        outputs: what it made.
        forward: of a backward operator, the forward operator whose gradient it is.
        cause: the events that led here, nearest first.
        growth: of an overflow, the events before it in which the largest magnitude grew, nearest first.
        spread: what it reached first, by `loss`, `gradient`, `parameter`, `buffer`, `state`, `end`.
        message: all of that in one sentence.
    """

    kind: Kind
    what: Literal["nan", "inf"]
    inputs_finite: bool
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    forward: Place | None
    cause: tuple[Link, ...]
    growth: tuple[Link, ...]
    spread: dict[str, Reached]
    message: str


@dataclass(frozen=True)
class Deliberate(Place):
    """A NaN or Inf that an operator was told to fill in, and that did no harm by itself."""

    what: Literal["nan", "inf"]
    message: str


@dataclass(frozen=True)
class Uninitialised(Place):
    """
    Memory that was allocated (here), and read before all of it had been written.

    Attributes:
        reader: the operator that first used an unwritten element.
        written: how much of what it read had been written, from 0 to 1.
        matters: whether the result still shows it.
        message: in one sentence.
    """

    reader: Place
    written: float
    matters: bool
    message: str


@dataclass(frozen=True)
class Note:
    """Something about the run's numbers that is worth knowing, and no alarm."""

    kind: Literal["cleared", "skipped-steps", "underflow", "not-followed"]
    message: str
    place: Place | None = None


@dataclass(frozen=True)
class Largest(Place):
    """The largest finite magnitude of the trace, and where it was first seen."""

    magnitude: float
    dtype: str | None
