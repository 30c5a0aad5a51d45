"""
Findings that say the same thing, and those that only follow from others: what is told once, and with a count.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dispatchmon.analysis.nonfinite.findings import EXTERNAL, ORIGIN, TURNED, Finding
from dispatchmon.analysis.nonfinite.rows import Row
from dispatchmon.analysis.nonfinite.search import Search


@dataclass
class Alike:
    """Findings of one operator, module, line and cause, in order of events."""

    findings: list[Finding]
    follows: Finding | None = None  # an earlier finding of which these are consequences

    @property
    def first(self) -> Finding:
        return self.findings[0]


def grouped(search: Search, alarms: Iterable[Finding]) -> list[Alike]:
    """Put findings together that say the same thing."""
    groups: dict[tuple[object, ...], Alike] = {}
    turned: dict[int, Finding] = {}  # finding -> the first NaN that its Inf turned into
    began: dict[int, Finding] = {}  # event -> the finding that began there
    for found in alarms:
        root = first_cause(search, found)
        cause = None if root is None else place(root.row)
        came_by_itself = found.kind == EXTERNAL and found.collective is None
        name = (found.row.name or found.row.arg) if came_by_itself else None
        row = found.collective or found.row
        key = (found.kind, found.what, row.phase, place(row), cause, name, found.argument)
        group = groups.get(key)
        if group is None:
            group = groups[key] = Alike([])
            group.follows = followed(found, root, turned, began)
        group.findings.append(found)
        began.setdefault(found.event, found)
        if root is not None:
            turned.setdefault(root.number, found)
        elif found.collective is not None:  # it has turned already, on another rank, or that is told there
            turned.setdefault(found.number, found)
    return list(groups.values())


def followed(
    found: Finding, root: Finding | None, turned: dict[int, Finding], began: dict[int, Finding]
) -> Finding | None:
    """
    The finding that this is a mere consequence of.

    An Inf turns to NaN wherever it goes: only the first time says something new, and none if a collective brought it. So does
    the gradient of an operator that made a NaN.
    """
    if root is not None:
        return turned.get(root.number)
    if found.kind == ORIGIN and found.row.phase == "backward" and found.row.forward_event is not None:
        return began.get(found.row.forward_event)
    return None


def first_cause(search: Search, found: Finding) -> Finding | None:
    """Where the Inf began that turned to NaN."""
    if found.kind != TURNED:
        return None
    roots = (each for each in search.ancestors(found) if each.kind != TURNED)
    return min(roots, key=lambda each: each.event, default=None)


def place(row: Row) -> tuple[str, str | None, str | None]:
    """The operator, its module and its line."""
    return row.op, row.module, row.source
