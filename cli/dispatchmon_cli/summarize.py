"""
`dispatchmon summarize`: what ran, what it wrote over, and what stands out.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from dispatchmon.analysis.summary import BY, SORTS, Group, Sighting, Summary, summarize
from dispatchmon_cli.layout import Cells
from dispatchmon_cli.options import Request, reads_trace
from dispatchmon_cli.progress import progress_bar
from dispatchmon_cli.wording import count, counted, duration, in_module, module_name, number

_TITLES = {"op": "operator", "source": "source line"}
_NO_KEY = {"dtype": "(no tensor)", "source": "(unknown)"}
_NOUNS = {"op": "operator call", "module": "module call", "parameter": "parameter record"}
_NUMBERS = ("calls", "writes", "time_ns", "rows", "magnitude", "nan", "inf")


@click.command()
@reads_trace()
@click.option("--by", type=click.Choice(BY), default="op", show_default=True, help="What to group by.")
@click.option("--sort", type=click.Choice(SORTS), help="Largest first; names ascending. [default: calls; steps: name]")
@click.option("--top", type=click.IntRange(min=0), default=20, show_default=True, help="Show so many groups; 0 is all.")
def command(request: Request, by: Any, sort: Any, top: int) -> None:
    """What ran, what it wrote over, and what stands out."""
    with request.open_report() as report:
        trace = request.open_trace()
        with progress_bar("reading") as on_progress:
            answer = summarize(trace, by, request.filters, sort, top or None, on_progress=on_progress)
        records = [_record(answer, group) for group in answer.groups]
        report.write(
            document={
                "format": 1,
                "by": answer.by,
                "kind": answer.kind,
                "groups": records,
                "totals": asdict(answer.totals),
                "stands_out": asdict(answer.stands_out),
                "warnings": list(trace.warnings),
            },
            records=records,
            columns=(by, *_NUMBERS),
            cells=_cells(answer),
            closing=_closing(answer),
        )


def _record(answer: Summary, group: Group) -> dict[str, Any]:
    return {answer.by: group.key, **{name: getattr(group, name) for name in _NUMBERS}}


def _cells(answer: Summary) -> Cells:
    rows = []
    for group in answer.groups:
        key = str(group.key) if group.key is not None else _NO_KEY.get(answer.by)
        rows.append(
            [
                module_name(key) if answer.by == "module" else str(key),
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
        for row, group in enumerate(answer.groups)
        for column, seen in ((5, group.nan), (6, group.inf))
        if seen
    )
    titles = (_TITLES.get(answer.by, answer.by), "calls", "writes", "time", "largest", "NaN", "Inf")
    return Cells(titles, rows, alarming=alarming)


def _closing(answer: Summary) -> list[str]:
    totals, out = answer.totals, answer.stands_out
    if not totals.calls:
        return ["No operator, module or parameter matches."]
    said = []
    if len(answer.groups) < totals.groups:
        said += [f"{count(len(answer.groups))} of {count(totals.groups)} groups are shown; --top 0 shows all.", ""]
    on_ranks = f" on {counted(totals.ranks, 'rank')}" if totals.ranks > 1 else ""
    said.append(
        f"{counted(totals.calls, _NOUNS[answer.kind])} in {counted(totals.steps, 'step')}{on_ranks}, "
        f"{duration(totals.time_ns)}. {_writes(answer)}"
    )
    said.append(_numbers(answer))
    if out.without_statistics:
        have = "has" if out.without_statistics == 1 else "have"
        said.append(
            f"{count(out.without_statistics)} of {counted(out.tensors, 'value')} {have} no statistics: "
            "whether they hold NaN or Inf is unknown."
        )
    return said


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
    if first:
        return (
            f"NaN or Inf was first seen in {_sighting(first)}. That is where it was seen, not necessarily where it was "
            f"made: `dispatchmon nonfinite` looks for the origin. Of the finite elements {largest_is}"
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
