"""
`dispatchmon audit`: every in-place write, and which are hazards.
"""

from __future__ import annotations

import click

from dispatchmon.analysis.audit import audit
from dispatchmon_cli.options import FOUND, Request, reads_trace, warn
from dispatchmon_cli.progress import progress_bar


@click.command()
@reads_trace()
@click.option("--all", "everything", is_flag=True, help="List every write, one by one.")
@click.option("--top", type=click.IntRange(min=0), default=20, show_default=True, help="Show so many rows; 0 is all.")
def command(request: Request, everything: bool, top: int) -> int:
    """Every in-place write, and which are hazards."""
    with request.open_report() as report:
        trace = request.open_trace()
        with progress_bar("reading") as on_progress:
            answer = audit(trace, request.filters, every_write=everything, top=top, on_progress=on_progress)
        warn(answer.warnings[len(trace.warnings) :])  # of the trace it was warned when it was opened
        report.answer(answer)
    return FOUND if answer.hazards else 0
