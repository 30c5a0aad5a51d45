"""
The trends of a trace: one number per step for each module, parameter, quantity and statistic.

Several calls of a module in one step, and several gradients of one parameter, are one value here: the statistics of all
their elements together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from dispatchmon.reading.query import Filters, query
from dispatchmon.reading.trace_files import TraceFiles
from dispatchmon.schema import STATISTICS
from dispatchmon.words.harmless import csv_line

_COLUMNS = (
    "kind", "rank", "step", "phase", "module", "role", "arg", "name", "numel", *STATISTICS, "start_ns", "event")  # fmt: skip
_COUNTS = ("nan", "inf", "posinf", "zero")
_SQL = """
SELECT rank, step, kind, module, role, arg, name, min(start_ns) AS start_ns, min(event) AS first,
    min(min) AS min, max(max) AS max,
    CASE WHEN count(*) = 1 THEN any_value(mean) ELSE sum(mean * n) / nullif(sum(n) FILTER (mean IS NOT NULL), 0) END AS mean,
    CASE WHEN count(*) = 1 THEN any_value(std) ELSE sqrt(greatest(0, sum(n * (std * std + mean * mean)) / nullif(sum(n)
        FILTER (std IS NOT NULL), 0) - pow(sum(mean * n) / nullif(sum(n) FILTER (mean IS NOT NULL), 0), 2))) END AS std,
    CASE WHEN count(*) = 1 THEN any_value(norm) ELSE sqrt(sum(norm * norm)) END AS norm,
    sum(nan) AS nan, sum(inf) AS inf, sum(posinf) AS posinf, sum(zero) AS zero
FROM (SELECT *, numel - coalesce(nan, 0) - coalesce(inf, 0) AS n FROM trace
      WHERE kind IN ('module', 'parameter') AND role IS NOT NULL AND phase <> 'recompute')
GROUP BY rank, step, kind, module, role, arg, name ORDER BY rank, step, first
"""


class Scalar(NamedTuple):
    """One number: `of` is a module or a parameter, `quantity` as `input`, `grad_output.logits`, `update`, `exp_avg`."""

    rank: int
    step: int
    start_ns: int  # when it was first seen, since the start of the trace
    of: str
    quantity: str
    statistic: str
    value: float


def scalars(
    trace: TraceFiles, filters: Filters | None = None, *, on_progress: Callable[[float], None] | None = None
) -> Iterator[Scalar]:
    """
    Yield every number that was measured of modules and parameters, rank after rank, in order of step.

    `update` also has the statistic `ratio`: its norm over that of the parameter's value before the step.

    Raises:
        NotATraceError: a batch is damaged.
    """
    norms: dict[str, float] = {}
    place: tuple[int, int] | None = None
    for row in query(trace, _SQL, _COLUMNS, filters, on_progress=on_progress):
        if place != (row["rank"], row["step"]):
            place = row["rank"], row["step"]
            norms.clear()
        of, quantity = subject(row), quantity_of(row)
        for statistic in STATISTICS:
            if row[statistic] is not None:
                yield Scalar(*place, row["start_ns"], of, quantity, statistic, float(row[statistic]))
        if row["role"] == "value" and row["norm"]:
            norms[of] = row["norm"]
        if row["role"] == "update" and row["norm"] is not None and of in norms:
            yield Scalar(*place, row["start_ns"], of, quantity, "ratio", row["norm"] / norms[of])


def subject(row: dict[str, Any]) -> str:
    """The module or the parameter that a row is about."""
    if row["kind"] == "module":
        return row["module"] or "(model)"
    name = row["name"] or "(unnamed)"
    suffix = {"grad": ".grad", "raw_grad": ".grad", "state": f".{row['arg']}"}.get(row["role"], "")
    return str(name.removesuffix(suffix))


def quantity_of(row: dict[str, Any]) -> str:
    """`input` for the first input, else the place: `input[1]`, `kwargs.mask`, `grad_output.logits`; of a state its name."""
    role, arg = row["role"], row["arg"]
    if row["kind"] != "module":
        return str(arg if role == "state" else role)
    place = "input" if arg == "input[0]" else arg
    return f"grad_{place}" if role.startswith("grad_") else str(place)


def write_scalars(
    trace: TraceFiles, path: Path, filters: Filters | None = None, *, on_progress: Callable[[float], None] | None = None
) -> int:
    """
    Write one tidy CSV table, `rank,step,name,quantity,statistic,value`, and return how many rows it has.

    Raises:
        NotATraceError: the trace is damaged.
    """
    rows = 0
    with open(path, "w", encoding="utf-8") as file:
        print(csv_line(("rank", "step", "name", "quantity", "statistic", "value")), file=file)
        for each in scalars(trace, filters, on_progress=on_progress):
            value = int(each.value) if each.statistic in _COUNTS else each.value
            print(csv_line((each.rank, each.step, each.of, each.quantity, each.statistic, value)), file=file)
            rows += 1
    return rows
