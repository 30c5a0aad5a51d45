"""
`dispatchmon audit`: every in-place write, and which are hazards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import click

from dispatchmon.analysis.audit import Audit, Finding, all_writes, audit
from dispatchmon_cli.layout import Cells
from dispatchmon_cli.options import Request, reads_trace
from dispatchmon_cli.progress import progress_bar
from dispatchmon_cli.wording import count, counted, module_name, number

_FOUND = 2
_FINDING = (
    *("kind", "severity", "event", "rank", "step", "phase", "op", "module", "source", "arg", "name", "shape", "dtype"),
    *("message", "suggestion", "victim", "count", "raises", "explains", "saved_as", "before", "after"),
)
_WRITE = ("rank", "event", "step", "phase", "op", "module", "source", "arg", "name", "shape", "dtype")
_SHOWN = ("min", "max", "mean", "std", "nan", "inf")


@click.command()
@reads_trace()
@click.option("--all", "everything", is_flag=True, help="List every write, one by one.")
@click.option("--top", type=click.IntRange(min=0), default=20, show_default=True, help="Show so many rows; 0 is all.")
def command(request: Request, everything: bool, top: int) -> int:
    """Every in-place write, and which are hazards."""
    with request.open_report() as report:
        trace = request.open_trace()
        with progress_bar("reading") as on_progress:
            answer = audit(trace, request.filters, on_progress=on_progress)
        for warning in answer.warnings:
            click.echo(f"dispatchmon: warning: {warning}", err=True)
        writes = list(all_writes(trace, request.filters)) if everything else []
        findings = [{key: value for key, value in asdict(f).items() if key != "details"} for f in answer.findings]
        document: dict[str, Any] = {
            "format": 1,
            "writes": answer.writes,
            "findings": findings,
            "inventory": [asdict(each) for each in answer.inventory],
            "warnings": [*trace.warnings, *answer.warnings],
        }
        if everything:
            document["all"] = writes
        report.write(
            document=document,
            records=writes if everything else findings,
            columns=_WRITE if everything else _FINDING,
            cells=_every_write(writes, top) if everything else _inventory(answer, top),
            opening=list(_paragraphs(answer)),
            closing=_closing(answer, len(writes) if everything else len(answer.inventory), top),
        )
    return _FOUND if answer.hazards else 0


def _paragraphs(answer: Audit) -> Iterator[str]:
    """Say the hazards, each as a short paragraph."""
    for finding in answer.hazards:
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


def _inventory(answer: Audit, top: int) -> Cells:
    rows = [
        [each.op, module_name(each.module), each.mutation, " ".join(each.phases), count(each.calls), each.source or "-"]
        for each in answer.inventory[: top or None]
    ]
    return Cells(("operator", "module", "kind", "phase", "writes", "first line"), rows, numeric=False)


def _every_write(writes: list[dict[str, Any]], top: int) -> Cells:
    rows = [
        [
            write["op"], module_name(write["module"]), count(write["step"]), write["phase"], count(write["event"]),
            write["name"] or write["arg"] or "-", str(list(write["shape"] or ())), write["source"] or "-",
        ]
        for write in writes[: top or None]
    ]  # fmt: skip
    titles = ("operator", "module", "step", "phase", "event", "over", "shape", "line")
    return Cells(titles, rows, numeric=False)


def _closing(answer: Audit, rows: int, top: int) -> list[str]:
    if not answer.writes:
        return ["Nothing was written in place."]
    said = []
    if top and rows > top:
        said += [f"{count(top)} of {counted(rows, 'row')} are shown; --top 0 shows all.", ""]
    kinds = {
        severity: sum(f.severity == severity for f in answer.findings) for severity in ("error", "warning", "note")
    }
    found = ", ".join(counted(n, severity) for severity, n in kinds.items() if n and severity != "note")
    notes = f" {counted(kinds['note'], 'note')} in the JSON." if kinds["note"] else ""
    said.append(f"{counted(answer.writes, 'write')} in place: {found or 'no hazard was found'}.{notes}")
    return said
