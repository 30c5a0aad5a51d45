"""
`summarize`: from the rows of a trace to its groups, its totals and what stands out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from math import prod
from typing import Any, Literal, get_args

import numpy as np

from dispatchmon.analysis.nonfinite.masks import is_mask
from dispatchmon.analysis.nonfinite.rows import events_by_number
from dispatchmon.analysis.nonfinite.unwritten_rows import unwritten_rows
from dispatchmon.analysis.summary.answer import Group, Sighting, StandsOut, Summary, Totals, Writes
from dispatchmon.analysis.summary.tally import Rows, Tally, Unwritten
from dispatchmon.reading.contents import Within
from dispatchmon.reading.query import Filters, query, select
from dispatchmon.reading.trace_files import TraceFiles

By = Literal["op", "module", "phase", "step", "dtype", "source"]
Sort = Literal["calls", "writes", "time", "magnitude", "nan", "inf", "name"]
BY: tuple[str, ...] = get_args(By)
SORTS: tuple[str, ...] = get_args(Sort)

_KINDS = ("op", "module", "parameter")  # what a summary is about: the first of these that the trace holds
_MAGNITUDE = "greatest(abs(min), abs(max))"  # greatest() ignores nulls
# What an in-place write finds is an earlier result, and shown there, or memory that nobody has written.
_MADE = "coalesce(NOT (written AND role = 'input'), true)"
_REAL = "(dtype LIKE '%float%' OR dtype LIKE 'complex%')"  # of integers, indices and counters, the largest says nothing

_GROUP_COLUMNS = (
    *("kind", "event", "op", "arguments", "mutation", "duration_ns", "step", "rank", "dtype", "role", "written"),
    *("min", "max", "nan", "inf"),
)


def summarize(
    trace: TraceFiles,
    by: By = "op",
    filters: Filters | None = None,
    sort: Sort | None = None,
    top: int | None = None,
    *,
    on_progress: Callable[[float], None] | None = None,
) -> Summary:
    """
    Group the events of a trace and say what stands out.

    Args:
        trace: the trace.
        by: what to group by.
        filters: which rows to look at (default all).
        sort: order of the groups, largest first, names and steps ascending. Default `calls`, for steps `name`.
        top: keep only so many groups (default all). The totals cover all of them.
        on_progress: called while reading, with the part that is done, from 0 to 1.

    Raises:
        ValueError: `by` or `sort` is not one of the above.
        NotATraceError: the trace is damaged.
    """
    sort = sort or ("name" if by == "step" else "calls")
    if by not in BY or sort not in SORTS:
        raise ValueError(f"by is one of {', '.join(BY)}, and sort one of {', '.join(SORTS)}")
    filters = filters or Filters()
    unwritten = _unwritten(trace, filters)
    columns = tuple(dict.fromkeys((by, *_GROUP_COLUMNS, *(("arg",) if unwritten else ()))))
    tallies: dict[str, Tally] = {}
    for batch in select(trace, {}, filters, columns, on_progress=on_progress):
        if not batch.num_rows:
            continue
        rows = Rows.of(batch, by, unwritten)
        for kind in _KINDS:
            among = rows.kind.equal(kind)
            if among.any():
                tallies.setdefault(kind, Tally()).add(rows, among)
    kind = next((kind for kind in _KINDS if kind in tallies), "op")
    if kind not in tallies:
        return Summary(by, kind, (), Totals(), StandsOut(Writes(), None, None, 0, 0), trace.warnings)
    tally = tallies[kind]
    total, groups = tally.totals(), _sorted(tally.groups(), sort)
    first = largest = None
    if total["nan"] or total["inf"]:
        first = _first(trace, kind, filters, unwritten, f"{_MADE} AND (nan > 0 OR inf > 0)", None, tally.first)
        first = first and replace(first, deliberate=_is_deliberate(trace, first))
    if tally.largest >= 0:
        is_largest = f"{_REAL} AND {_MADE} AND {_MAGNITUDE} = $magnitude"
        largest = _first(trace, kind, filters, unwritten, is_largest, tally.largest, tally.largest_at)
    return Summary(
        by=by,
        kind=kind,
        groups=tuple(_picked(Group, row) for row in groups[:top]),
        totals=replace(_picked(Totals, total), groups=len(groups)),
        stands_out=StandsOut(_picked(Writes, total), first, largest, total["tensors"], total["without_statistics"]),
        warnings=trace.warnings,
    )


def _unwritten(trace: TraceFiles, filters: Filters) -> Unwritten:
    """Which rows show memory that nobody has written: by rank, event, role and argument."""
    ranks = [rank for rank in trace.ranks if not filters.ranks or rank in filters.ranks]
    return frozenset((rank, *row) for rank in ranks for row in unwritten_rows(trace, rank, filters))


def _sorted(groups: list[dict[str, Any]], sort: Sort) -> list[dict[str, Any]]:
    """Groups in order, those that have no such number last; among equals by their keys, and none last."""
    groups = sorted(groups, key=lambda row: (row["key"] is None, row["key"] if row["key"] is not None else 0))
    if sort == "name":
        return groups
    name = "time_ns" if sort == "time" else sort
    return sorted(groups, key=lambda row: (row[name] is None, -(row[name] or 0)))


def _first(
    trace: TraceFiles,
    kind: str,
    filters: Filters,
    unwritten: Unwritten,
    condition: str,
    magnitude: float | None,
    places: dict[int, tuple[int, int]],
) -> Sighting | None:
    """
    Return the first value, in order of events, that meets the condition.

    Events are numbered in each process by itself; between ranks, the earlier step comes first. `places` has step and event
    of the first value of each rank.
    """
    if not places:
        return None
    step, event, rank = min((step, event, rank) for rank, (step, event) in places.items())
    columns = [f.name for f in fields(Sighting) if f.name not in ("magnitude", "deliberate")]
    sql = (
        f"SELECT {', '.join(columns)}, {_MAGNITUDE} AS magnitude "
        f"FROM trace WHERE event = $event AND step = $step AND kind = $kind AND ({condition})"
    )
    values = {"event": event, "step": step, "kind": kind} | ({} if magnitude is None else {"magnitude": magnitude})
    read = ("kind", "min", "max", "written", *columns)
    within: Within = {"event": np.array([event], np.int64)}
    found = query(trace, sql, read, replace(filters, ranks=(rank,)), values=values, within=within)
    row = next((row for row in found if (rank, event, row["role"], row["arg"]) not in unwritten), None)
    if row is None:
        return None
    return Sighting(**{**row, "shape": None if row["shape"] is None else tuple(row["shape"])})


def _is_deliberate(trace: TraceFiles, seen: Sighting) -> bool:
    """Whether an operator filled in a number of its own there, or somebody wrote down nothing but Inf, or its logarithm."""
    if seen.op == "aten.lift_fresh.default":
        return seen.shape is not None and seen.inf == prod(seen.shape)
    if seen.role != "output":
        return False
    event = events_by_number(trace, seen.rank, {seen.event}).get(seen.event)
    if event is None:
        return False
    return bool(event.constants) and event.non_finite_argument is None or is_mask(trace, seen.rank, event)


def _picked(kind: type[Any], row: dict[str, Any]) -> Any:
    return kind(**{field.name: row[field.name] for field in fields(kind) if field.name in row})
