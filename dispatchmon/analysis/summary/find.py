"""
`summarize`: from the rows of a trace to its groups, its totals and what stands out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from math import prod
from typing import Any, Literal, get_args

from dispatchmon.analysis.nonfinite.masks import is_mask
from dispatchmon.analysis.nonfinite.rows import events_by_number
from dispatchmon.analysis.nonfinite.unwritten_rows import READ, unwritten_rows
from dispatchmon.analysis.summary.answer import Group, Sighting, StandsOut, Summary, Totals, Writes
from dispatchmon.reading.query import Filters, query
from dispatchmon.reading.trace_files import TraceFiles

By = Literal["op", "module", "phase", "step", "dtype", "source"]
Sort = Literal["calls", "writes", "time", "magnitude", "nan", "inf", "name"]
BY: tuple[str, ...] = get_args(By)
SORTS: tuple[str, ...] = get_args(Sort)

_KINDS = ("op", "module", "parameter")  # what a summary is about: the first of these that the trace holds
_ORDER = {sort: f"{sort} DESC NULLS LAST" for sort in SORTS} | {"time": "time_ns DESC", "name": "key NULLS LAST"}
_MAGNITUDE = "greatest(abs(min), abs(max))"  # greatest() ignores nulls
# What an in-place write finds is an earlier result, and shown there, or memory that nobody has written.
_MADE = "coalesce(NOT (written AND role = 'input'), true)"
_REAL = "(dtype LIKE '%float%' OR dtype LIKE 'complex%')"  # of integers, indices and counters, the largest says nothing

# Every event has `arguments` on its first row and nowhere else, so that row stands for the event.
_GROUPS = """
SELECT *, count(*) OVER (PARTITION BY kind, is_total) AS groups
FROM (
    SELECT
        kind,
        {by} AS key,
        grouping({by}) AS is_total,
        count(arguments) AS calls,
        count(arguments) FILTER (mutation <> 'none') AS writes,
        coalesce(sum(duration_ns) FILTER (arguments IS NOT NULL), 0)::BIGINT AS time_ns,
        count(*) AS "rows",
        max({magnitude}) FILTER (WHERE {read} AND NOT unwritten) AS magnitude,
        max({magnitude}) FILTER {real_only} AS largest,
        (sum(nan) FILTER (WHERE {read} AND NOT unwritten))::BIGINT AS nan,
        (sum(inf) FILTER (WHERE {read} AND NOT unwritten))::BIGINT AS inf,
        count(DISTINCT step) AS steps,
        count(DISTINCT rank) AS ranks,
        count(arguments) FILTER (mutation = 'inplace') AS inplace,
        count(arguments) FILTER (mutation = 'out') AS out,
        count(arguments) FILTER (mutation = 'other') AS other,
        count(arguments) FILTER (mutation = 'undeclared') AS undeclared,
        count(dtype) AS tensors,
        count(dtype) FILTER (nan IS NULL AND inf IS NULL AND min IS NULL AND max IS NULL) AS without_statistics,
    FROM (SELECT *, {unwritten} AS unwritten FROM trace)
    WHERE kind IN {kinds}
    GROUP BY GROUPING SETS ((kind, {by}), (kind))
)
QUALIFY is_total = 1 OR row_number() OVER (PARTITION BY kind, is_total ORDER BY {order}, key NULLS LAST) <= $top
ORDER BY is_total DESC, {order}, key NULLS LAST
"""
_GROUP_COLUMNS = (
    *("kind", "op", "arguments", "mutation", "duration_ns", "step", "rank", "dtype", "role", "written"),
    *("event", "arg", "min", "max", "nan", "inf"),
)
# Whether what a row shows is of memory that nobody has written, by a list of such rows.
_UNWRITTEN = """
((rank, event, coalesce(role, ''), coalesce(arg, '')) IN
 (SELECT (unnest($ranks), unnest($events), unnest($roles), unnest($args))))
"""


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
    unwritten = _Unwritten.of(trace, filters)
    rows = list(
        query(
            trace,
            groups_sql(by, sort, unwritten.sql),
            (by, *_GROUP_COLUMNS),
            filters,
            values={"top": 2**62 if top is None else top, **unwritten.values},
            on_progress=on_progress,
        )
    )
    totals = {row["kind"]: row for row in rows if row["is_total"]}
    kind = next((kind for kind in _KINDS if kind in totals), "op")
    groups = [row for row in rows if row["kind"] == kind and not row["is_total"]]
    if kind not in totals:
        return Summary(by, kind, (), Totals(), StandsOut(Writes(), None, None, 0, 0), trace.warnings)
    total = totals[kind]
    first = largest = None
    if total["nan"] or total["inf"]:
        first = _first(trace, kind, filters, unwritten, f"{_MADE} AND (nan > 0 OR inf > 0)", None)
        first = first and replace(first, deliberate=_is_deliberate(trace, first))
    if total["largest"] is not None:
        condition = f"{_REAL} AND {_MADE} AND {_MAGNITUDE} = $magnitude"
        largest = _first(trace, kind, filters, unwritten, condition, total["largest"])
    return Summary(
        by=by,
        kind=kind,
        groups=tuple(_picked(Group, row) for row in groups),
        totals=replace(_picked(Totals, total), groups=groups[0]["groups"] if groups else 0),
        stands_out=StandsOut(_picked(Writes, total), first, largest, total["tensors"], total["without_statistics"]),
        warnings=trace.warnings,
    )


@dataclass(frozen=True)
class _Unwritten:
    """Which rows show memory that nobody has written: as SQL, and the values of its parameters."""

    sql: str = "false"
    values: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, trace: TraceFiles, filters: Filters) -> _Unwritten:
        ranks = [rank for rank in trace.ranks if not filters.ranks or rank in filters.ranks]
        rows = [(rank, row) for rank in ranks for row in unwritten_rows(trace, rank, filters)]
        if not rows:
            return cls()
        return cls(
            _UNWRITTEN,
            {
                "ranks": [rank for rank, _ in rows],
                "events": [row.event for _, row in rows],
                "roles": [row.role or "" for _, row in rows],
                "args": [row.arg or "" for _, row in rows],
            },
        )


def groups_sql(by: str, sort: str, unwritten: str = "false") -> str:
    """Return the one aggregation that a summary is made of, over a table `trace`; its parameter `top` cuts the groups."""
    return _GROUPS.format(
        by=by,
        magnitude=_MAGNITUDE,
        read=READ,
        real_only=f"(WHERE {_REAL} AND {_MADE} AND NOT unwritten)",
        unwritten=unwritten,
        kinds=_KINDS,
        order=_ORDER[sort],
    )


def _first(
    trace: TraceFiles, kind: str, filters: Filters, unwritten: _Unwritten, condition: str, magnitude: float | None
) -> Sighting | None:
    """
    Return the first value, in order of events, that meets the condition.

    Events are numbered in each process by itself; between ranks, the earlier step comes first.
    """
    columns = [f.name for f in fields(Sighting) if f.name not in ("magnitude", "deliberate")]
    sql = (
        f"SELECT {', '.join(columns)}, {_MAGNITUDE} AS magnitude "
        f"FROM trace WHERE kind = $kind AND ({condition}) AND NOT {unwritten.sql} LIMIT 1"
    )
    values = {"kind": kind, **unwritten.values} | ({} if magnitude is None else {"magnitude": magnitude})

    def firsts() -> Iterator[dict[str, Any]]:
        for rank in trace.ranks:
            if not filters.ranks or rank in filters.ranks:
                of_rank = replace(filters, ranks=(rank,))
                yield from query(trace, sql, ("kind", "min", "max", "written", *columns), of_rank, values=values)

    row = min(firsts(), key=lambda row: (row["step"], row["event"], row["rank"]), default=None)
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
