"""
The answer of `audit`: what was found, and everything that wrote.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from dispatchmon.analysis.answer import Answer
from dispatchmon.words.documents import document
from dispatchmon.words.figures import count, counted, number
from dispatchmon.words.names import module_name
from dispatchmon.words.tables import Cells

STATISTICS = ("min", "max", "mean", "std", "norm", "nan", "inf")
_FINDING = (
    *("kind", "severity", "event", "rank", "step", "phase", "op", "module", "source", "arg", "name", "shape", "dtype"),
    *("message", "suggestion", "victim", "count", "raises", "explains", "saved_as", "before", "after"),
)
WRITE = ("rank", "event", "step", "phase", "op", "module", "source", "arg", "name", "shape", "dtype")
_SHOWN = ("min", "max", "mean", "std", "nan", "inf")


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
        lines: every line that it covers, `source` among them; `names` every name of what was written.
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
    lines: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
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


@dataclass(frozen=True, repr=False)
class Audit(Answer):
    """
    The answer of `audit`: findings in order of weight, then everything that wrote.

    Attributes:
        writes: how many events wrote.
        findings: hazards and notes.
        inventory: the writes, counted by operator and module.
        warnings: what must be known before trusting the trace, and what was not audited, one sentence each.
        every_write: each tensor that was written, in order of events; None if they were not asked for.
        top: how many rows the table shows; 0 is all.
    """

    writes: int
    findings: tuple[Finding, ...]
    inventory: tuple[Writes, ...]
    warnings: tuple[str, ...] = ()
    every_write: tuple[dict[str, Any], ...] | None = None
    top: int = 20

    @property
    def hazards(self) -> tuple[Finding, ...]:
        """The errors and warnings."""
        return tuple(f for f in self.findings if f.severity != "note")

    @property
    def items(self) -> str:
        return "findings" if self.every_write is None else "all"

    @property
    def columns(self) -> tuple[str, ...]:
        return _FINDING if self.every_write is None else WRITE

    def to_dict(self) -> dict[str, Any]:
        keys: dict[str, Any] = {
            "format": 1,
            "writes": self.writes,
            "findings": [{key: value for key, value in asdict(f).items() if key != "details"} for f in self.findings],
            "inventory": [asdict(each) for each in self.inventory],
            "warnings": self.warnings,
        }
        return document(keys if self.every_write is None else {**keys, "all": self.every_write})

    def table(self) -> Cells:
        return self._inventory() if self.every_write is None else _every_write(self.every_write[: self.top or None])

    def opening(self) -> list[str]:
        return list(_paragraphs(self.hazards))

    def closing(self) -> list[str]:
        rows = len(self.inventory if self.every_write is None else self.every_write)
        if not self.writes:
            return ["Nothing was written in place."]
        said = []
        if self.top and rows > self.top:
            said += [f"{count(self.top)} of {counted(rows, 'row')} are shown; --top 0 shows all.", ""]
        kinds = self._kinds()
        found = ", ".join(counted(n, severity) for severity, n in kinds.items() if n and severity != "note")
        notes = f" {counted(kinds['note'], 'note')} in the JSON." if kinds["note"] else ""
        said.append(f"{counted(self.writes, 'write')} in place: {found or 'no hazard was found'}.{notes}")
        return said

    def gist(self) -> str:
        kinds = self._kinds()
        found = ", ".join(counted(n, severity) for severity, n in kinds.items() if n)
        return f"{counted(self.writes, 'write')} in place, {found or 'no hazard'}"

    def _kinds(self) -> dict[str, int]:
        return {
            severity: sum(f.severity == severity for f in self.findings) for severity in ("error", "warning", "note")
        }

    def _inventory(self) -> Cells:
        rows = [
            [
                each.op,
                module_name(each.module),
                each.mutation,
                " ".join(each.phases),
                count(each.calls),
                each.source or "-",
            ]
            for each in self.inventory[: self.top or None]
        ]
        return Cells(("operator", "module", "kind", "phase", "writes", "first line"), rows, numeric=False)


def _paragraphs(hazards: tuple[Finding, ...]) -> Iterator[str]:
    """Say the hazards, each as a short paragraph."""
    for finding in hazards:
        times = f" ({counted(finding.count, 'time')})" if finding.count > 1 else ""
        yield f"{finding.severity}: {finding.kind}{times}"
        yield f"  {finding.message}."
        yield f"  step {count(finding.step)}, {finding.phase}, event {count(finding.event)}{_victim(finding)}"
        if finding.before or finding.after:
            yield f"  before: {_statistics(finding.before)}; after: {_statistics(finding.after)}"
        if finding.suggestion:
            yield f"  try: {finding.suggestion}"
        yield ""


def _victim(finding: Finding) -> str:
    victim = finding.victim
    if victim is None or victim.event is None:
        return ""
    where = f", {victim.phase}" if victim.phase else ""
    return f"; the other event: {count(victim.event)}{where}"


def _statistics(of: dict[str, Any] | None) -> str:
    if of is None:
        return "not measured"
    return ", ".join(f"{name} {number(of[name])}" for name in _SHOWN if of.get(name) is not None)


def _every_write(writes: tuple[dict[str, Any], ...]) -> Cells:
    rows = [
        [
            write["op"], module_name(write["module"]), count(write["step"]), write["phase"], count(write["event"]),
            write["name"] or write["arg"] or "-", str(list(write["shape"] or ())), write["source"] or "-",
        ]
        for write in writes
    ]  # fmt: skip
    titles = ("operator", "module", "step", "phase", "event", "over", "shape", "line")
    return Cells(titles, rows, numeric=False)
