"""
`dispatchmon export`: the rows in a foreign format.
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from dispatchmon import DispatchmonError
from dispatchmon.export.scalars import write_scalars
from dispatchmon.export.tensorboard import write_tensorboard
from dispatchmon_cli.options import Request, reads_trace
from dispatchmon_cli.progress import progress_bar
from dispatchmon_cli.wording import counted

_WRITERS = {"tensorboard": write_tensorboard, "scalars": write_scalars}


@click.command()
@reads_trace()
@click.option("--to", type=click.Choice(list(_WRITERS)), required=True, help="The format to write.")
def command(request: Request, to: str) -> None:
    """Write trends of modules and parameters for TensorBoard, or as one CSV table."""
    target = request.output
    if target is None:
        raise click.UsageError("name what to write with -o")
    if target.exists() and not request.force:
        raise DispatchmonError(f"{target} exists already; --force overwrites it")
    trace = request.open_trace()
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as beside, progress_bar("writing") as bar:
        place = Path(beside, target.name)
        n = _WRITERS[to](trace, place, request.filters, on_progress=bar)
        if target.is_dir():
            os.replace(target, Path(beside, "old"))
        os.replace(place, target)
    click.echo(f"{counted(n, 'number')} written to {target}")
