"""
`dispatchmon structure`: the module tree, with what went in and came out.
"""

from __future__ import annotations

import click

from dispatchmon.analysis.structure import structure
from dispatchmon_cli.options import Request, reads_trace
from dispatchmon_cli.progress import progress_bar


@click.command()
@reads_trace()
def command(request: Request) -> None:
    """The module tree, with shapes and dtypes of what went in and came out."""
    with request.open_report() as report:
        trace = request.open_trace()
        with progress_bar("reading") as on_progress:
            answer = structure(trace, request.filters, on_progress=on_progress)
        report.answer(answer)
