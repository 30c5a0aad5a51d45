"""
`dispatchmon export`: the rows in a foreign format.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import click

from dispatchmon.export.csv import write_csv
from dispatchmon.export.parquet import PARTITIONS, is_export, write_parquet, write_partitioned
from dispatchmon.export.scalars import write_scalars
from dispatchmon.export.tensorboard import SUFFIX, write_tensorboard
from dispatchmon.words.figures import counted, size
from dispatchmon.words.tables import Cells
from dispatchmon_cli.options import Request, reads_trace
from dispatchmon_cli.progress import progress_bar
from dispatchmon_cli.targets import file_target, folder_target, is_stdout

_WRITERS = {"parquet": write_parquet, "csv": write_csv, "tensorboard": write_tensorboard, "scalars": write_scalars}
_SUFFIXES = {"scalars": ".csv"}
_NOUNS = {"tensorboard": "scalar"}  # what is counted, where it is not rows
_COLUMNS = ("to", "path", "rows", "files", "bytes")


@click.command()
@reads_trace()
@click.option("--to", type=click.Choice(list(_WRITERS)), required=True, help="The format to write.")
@click.option(
    "--partition",
    metavar="COLUMNS",
    help="Parquet only: write a folder of files by rank, step, or rank,step, outermost first.",
)
def command(request: Request, to: str, partition: str | None) -> None:
    """Write the rows as Parquet or CSV, or trends for TensorBoard."""
    by = _partitions(to, partition)
    folder = bool(by) or to == "tensorboard"
    target = request.output or Path(_default_name(request.paths[0], to, folder))
    trace = request.open_trace()
    with _place(target, folder, request) as place:
        with progress_bar("writing") as on_progress:
            if by:
                rows = write_partitioned(trace, place, by, request.filters, on_progress=on_progress)
            else:
                rows = _WRITERS[to](trace, place, request.filters, on_progress=on_progress)
        files = [path for path in (place.rglob("*") if folder else [place]) if path.is_file()]
        total = sum(path.stat().st_size for path in files)
    if is_stdout(target):  # where the rows went
        return
    record = {"to": to, "path": str(target), "rows": rows, "files": len(files), "bytes": total}
    with request.on_stdout().open_report() as report:
        report.write(
            document={"format": 1, **record, "warnings": list(trace.warnings)},
            records=[record],
            columns=_COLUMNS,
            cells=Cells(("", ""), _lines(record), numeric=False),
        )


def _lines(record: dict[str, Any]) -> list[tuple[str, str]]:
    what = counted(record["rows"], _NOUNS.get(record["to"], "row"))
    held = f"{what} in {counted(record['files'], 'file')}, {size(record['bytes'])}"
    return [("wrote", record["path"]), ("holds", held)]


def _partitions(to: str, text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    by = tuple(text.split(","))
    if len(set(by)) < len(by) or any(name not in PARTITIONS for name in by):
        raise click.BadParameter(f"{text!r} is not rank, step, or rank,step", param_hint="'--partition'")
    if to != "parquet":
        raise click.UsageError("--partition goes with --to parquet")
    return by


def _default_name(path: Path, to: str, folder: bool) -> str:
    """Name the export after the trace, in the working folder."""
    name = path.resolve().name if path.is_dir() else path.stem
    return f"{name}-{to}" if folder else f"{name}{_SUFFIXES.get(to, f'.{to}')}"


def _place(target: Path, folder: bool, request: Request) -> AbstractContextManager[Path]:
    if folder:
        return folder_target(target, force=request.force, inputs=request.paths, ours=_is_ours)
    return file_target(target, force=request.force, inputs=request.paths)


def _is_ours(path: Path) -> bool:
    """Whether an export wrote a file: event files have a suffix of their own, Parquet has the trace's metadata."""
    return path.suffix == SUFFIX or (path.suffix == ".parquet" and is_export(path))
