"""
`dispatchmon summarize`: what ran, what it wrote over, and what stands out.
"""

from __future__ import annotations

from typing import Any

import click

from dispatchmon.analysis.summary import BY, SORTS, summarize
from dispatchmon_cli.options import Request, reads_trace
from dispatchmon_cli.progress import progress_bar


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
        report.answer(answer)
