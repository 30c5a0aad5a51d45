"""
`dispatchmon nonfinite`: where the first NaN or Inf was born, what led there, and where it went.
"""

from __future__ import annotations

import click

from dispatchmon.analysis.nonfinite import find_nonfinite
from dispatchmon_cli.options import FOUND, Request, reads_trace
from dispatchmon_cli.progress import progress_bar


@click.command()
@reads_trace()
def command(request: Request) -> int:
    """Where the first NaN or Inf was born, what led there, and where it went."""
    with request.open_report() as report:
        trace = request.open_trace()
        with progress_bar("reading") as on_progress:
            answer = find_nonfinite(trace, request.filters, on_progress=on_progress)
        report.answer(answer)
    return FOUND if answer.found else 0
