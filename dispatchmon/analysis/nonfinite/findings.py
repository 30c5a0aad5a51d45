"""
What the search finds: the places where a non-finite value began, and what became of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dispatchmon.analysis.nonfinite.rows import Row

ORIGIN = "origin"  # arithmetic made it out of finite values
TURNED = "turned"  # arithmetic made NaN out of Inf
DELIBERATE = "deliberate"  # a constant of the operator's own
EXTERNAL = "external"  # it was there when it was first seen
UNWRITTEN = "unwritten"  # what memory holds that nobody has written
READ_UNWRITTEN = "read-unwritten"  # such memory was used
ALARM, CLEARED, HARMLESS, CONSUMED = "alarm", "cleared", "harmless", "consumed"


@dataclass
class Finding:
    """One beginning. The elements that descend from it carry its number through the trace."""

    number: int
    kind: str
    row: Row  # the first row that shows it
    inputs_finite: bool = True
    made: set[str] = field(default_factory=set)  # "nan", "inf"
    causes: set[int] = field(default_factory=set)  # findings whose elements were used up here
    parents: list[int] = field(default_factory=list)  # events that made its non-finite inputs
    became: set[int] = field(default_factory=set)  # findings that its elements turned into
    spread: dict[str, tuple[int, str | None]] = field(default_factory=dict)  # place -> first event there, name
    ends: dict[int, int] = field(default_factory=dict)  # storage -> event that wrote it
    cleared_by: list[int] = field(default_factory=list)  # events from which none of it came out again
    arithmetic: bool = False  # an operator calculated with it
    asked: bool = False  # the program asked of it, and went on training
    verdict: str = CLEARED
    counts: dict[str, int] = field(default_factory=dict)  # of what began here, at its first result
    argument: str | None = None  # the operator's own number that was NaN or Inf, of one that calculates
    mask: bool = False  # the logarithm of zeros and ones, as masks are made
    collective: Row | None = None  # that brought it from another rank
    reader: Row | None = None  # of unwritten memory
    written: float = 1.0  # how much of what it read had been written
    unmeasured: bool = False  # some input of its operator was not measured

    @property
    def event(self) -> int:
        """The event where it began."""
        return self.row.event

    @property
    def is_mask(self) -> bool:
        """Whether it was put there on purpose."""
        return self.kind == DELIBERATE or self.mask

    @property
    def what(self) -> str:
        """`nan` if any NaN was made, else `inf`."""
        return "nan" if "nan" in self.made else "inf"
