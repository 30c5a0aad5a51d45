"""
`dispatchmon export`: the rows in a foreign format.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from dispatchmon import DispatchmonError
from dispatchmon.export.csv import write_csv
from dispatchmon.export.parquet import PARTITIONS, write_parquet, write_partitioned
from dispatchmon.export.scalars import write_scalars
from dispatchmon.export.tensorboard import SUFFIX, write_tensorboard
from dispatchmon.words.figures import counted, size
from dispatchmon.words.tables import Cells
from dispatchmon_cli.options import Request, reads_trace
from dispatchmon_cli.progress import progress_bar

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
    with request.on_stdout().open_report() as report:
        trace = request.open_trace()
        with _place(target, folder, request) as place, progress_bar("writing") as on_progress:
            if by:
                rows = write_partitioned(trace, place, by, request.filters, on_progress=on_progress)
            else:
                rows = _WRITERS[to](trace, place, request.filters, on_progress=on_progress)
        files = [path for path in (target.rglob("*") if folder else [target]) if path.is_file()]
        total = sum(path.stat().st_size for path in files)
        record = {"to": to, "path": str(target), "rows": rows, "files": len(files), "bytes": total}
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


@contextmanager
def _place(target: Path, folder: bool, request: Request) -> Iterator[Path]:
    """
    Yield a path to write to; what is there appears at the target when it is whole.

    Raises:
        DispatchmonError: the target exists and --force was not given, is a trace, or is something else than an export.
    """
    if target.exists():
        if any(path.exists() and path.samefile(target) for path in request.paths):
            raise DispatchmonError(f"{target} is the trace itself; name another path to write to")
        if not request.force:
            raise DispatchmonError(f"{target} exists already; --force overwrites it")
        if target.is_dir() and not (folder and _is_export(target)):
            raise DispatchmonError(f"{target} is a folder that export has not made; name another path to write to")
        if folder and not target.is_dir():
            raise DispatchmonError(f"{target} is a file; name a folder to write to")
    if not target.parent.is_dir():
        raise DispatchmonError(f"there is no folder {target.parent} to write {target.name} into")
    with TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent, ignore_cleanup_errors=True) as beside:
        place = Path(beside, target.name)
        yield place
        if target.is_dir():
            os.replace(target, Path(beside, "old"))
        os.replace(place, target)


def _is_export(folder: Path) -> bool:
    """Whether a folder holds nothing but partitions and Parquet files, or runs and event files."""
    inside = list(folder.rglob("*"))
    return all("=" in path.name if path.is_dir() else path.suffix == ".parquet" for path in inside) or all(
        path.name.startswith("rank") if path.is_dir() else path.suffix == SUFFIX for path in inside
    )
