"""
What the answer of `nonfinite` is made of: events, and what is said of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
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
        spread: what it reached first, by `loss`, `gradient`, `parameter`, `buffer`, `state`, `raised` (the operator that
            raised when it read it), `result` (of the model), `end` (a value that no operator read again).
        message: all of that in one sentence.
        count: how many events this stands for: those of the same operator, module, line and cause.
        total: the NaN and Inf of their results.
        follows: of what is a mere consequence, the earlier origin; it may be on another rank.
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
    count: int = 1
    total: dict[str, int] = field(default_factory=dict)
    follows: Place | None = None


@dataclass(frozen=True)
class Vanished(Place):
    """
    An overflow that became exact zeros, which spoiled a result without any NaN.

    Attributes:
        zeroed: the operator that made zeros of the Inf.
        result: the operator that multiplied by these zeros.
        zeros: elements of its result that are 0.
        spread: what that reached, as of an origin.
        message: in one sentence.
        count: how often it came at this line.
    """

    zeroed: Place
    result: Place
    zeros: int
    spread: dict[str, Reached]
    message: str
    count: int = 1


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
