"""What the audit answers with: plain dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

STATISTICS = ("min", "max", "mean", "std", "norm", "nan", "inf")


@dataclass(frozen=True)
class Victim:
    """The event that lost something: that had saved the value, or read it afterwards."""

    event: int | None
    op: str | None
    module: str | None
    phase: str | None
    source: str | None
    name: str | None


@dataclass(frozen=True)
class Finding:
    """
    One hazard, or one write that is worth a note.

    Attributes:
        kind: `write-after-save`, `input-overwritten`, `alias-overwritten`, `overlapping-write`, `undeclared-write`,
            `blocked-write`, `parameter-write` or `buffer-write`.
        severity: `error`, `warning` or `note`.
        event: that wrote; with `rank` it is unique.
        message: one plain sentence.
        suggestion: what to write instead, where something is safe to say.
        victim: who lost something, if that is known.
        count: how often the same finding came.
        raises: of `write-after-save`: whether autograd notices.
        explains: whether the run ended with torch's error about this very write.
        details: what else the `hazard` row says.
        before: statistics of the memory before the write, where they were measured; `after` likewise.
    """

    kind: str
    severity: str
    event: int
    rank: int
    step: int
    phase: str
    op: str
    module: str | None
    source: str | None
    arg: str | None
    name: str | None
    shape: tuple[int, ...] | None
    dtype: str | None
    message: str
    suggestion: str | None = None
    victim: Victim | None = None
    count: int = 1
    raises: bool | None = None
    explains: bool = False
    saved_as: str | None = None
    before: dict[str, float | int | None] | None = None
    after: dict[str, float | int | None] | None = None
    details: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Writes:
    """The writes of one operator in one module."""

    op: str
    module: str | None
    mutation: str
    phases: tuple[str, ...]
    calls: int
    steps: int
    source: str | None


@dataclass(frozen=True)
class Audit:
    """The answer of `audit`: findings in order of weight, then everything that wrote."""

    writes: int
    findings: tuple[Finding, ...]
    inventory: tuple[Writes, ...]
    warnings: tuple[str, ...] = field(default=())

    @property
    def hazards(self) -> tuple[Finding, ...]:
        """The errors and warnings."""
        return tuple(f for f in self.findings if f.severity != "note")
