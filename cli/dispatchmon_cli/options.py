"""
The options that every reading command shares, and what they ask for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import reduce, wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from dispatchmon.reading.arguments import read_interval
from dispatchmon.reading.contents import Range
from dispatchmon.reading.query import Filters
from dispatchmon.reading.trace_files import TraceFiles, open_files
from dispatchmon.schema import PHASES
from dispatchmon.words.harmless import printable
from dispatchmon_cli.report import FORMATS, Report, open_report

F = TypeVar("F", bound=Callable[..., Any])
FOUND = 2  # exit status of a command that looks for trouble, and found some


def warn(warnings: Iterable[str]) -> None:
    """Say on stderr what must be known before trusting an answer."""
    for warning in warnings:
        click.echo(f"dispatchmon: warning: {printable(warning)}", err=True)


@dataclass(frozen=True)
class Request:
    """What the shared options ask for: which trace, which rows of it, and where the answer goes."""

    paths: tuple[Path, ...]
    filters: Filters
    format: str
    output: Path | None
    force: bool
    color: bool

    def open_trace(self) -> TraceFiles:
        """Open the trace, and say on stderr what must be known before trusting it."""
        trace = open_files(self.paths)
        warn(trace.warnings)
        return trace

    def on_stdout(self) -> Request:
        """Return the same request with its answer on stdout: for a command that writes something else to FILE."""
        return replace(self, output=None)

    def open_report(self) -> AbstractContextManager[Report]:
        """Open the place for the answer, as a context manager; this fails early if it cannot be written."""
        return open_report(self.format, self.output, force=self.force, color=self.color, inputs=self.paths)


def read_range(_: click.Context, parameter: click.Parameter, text: str) -> Range:
    """Read `a:b`, `a:`, `:b`, or one number `a`, as a half-open range."""
    found = read_interval(text)
    if found is None:
        what = parameter.name
        raise click.BadParameter(f"{text!r} is not a range of {what}s; write a:b, as 10:20, or one {what}")
    return found


_OUTPUT_OPTIONS = (
    click.argument("paths", metavar="TRACE...", nargs=-1, required=True, type=click.Path(path_type=Path)),
    click.option(
        "--format", "format_", type=click.Choice(FORMATS), default="table", show_default=True, help="How to say it."
    ),
    click.option("-o", "--output", metavar="FILE", help="Write to this file; - is stdout."),
    click.option("--force", is_flag=True, help="Overwrite FILE if it exists."),
    click.option("--no-color", is_flag=True, help="No colors (they are off anyway when not on a terminal)."),
)
_FILTER_OPTIONS = (
    click.option(
        "--step", metavar="A:B", default=":", callback=read_range, help="Only steps from A up to, not including, B."
    ),
    click.option("--module", multiple=True, metavar="GLOB", help="Only these modules; may be repeated."),
    click.option("--op", multiple=True, metavar="GLOB", help="Only these operators; may be repeated."),
    click.option("--phase", multiple=True, type=click.Choice(PHASES), help="Only this phase; may be repeated."),
    click.option("--rank", multiple=True, type=click.IntRange(min=0), help="Only this rank; may be repeated."),
)


def reads_trace(*, filters: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """
    Give a command the shared options; it receives them as one `Request`, its first argument.

    Args:
        filters: whether the command looks at rows, so that it has the options which choose them.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def with_request(
            paths: tuple[Path, ...],
            format_: str,
            output: str | None,
            force: bool,
            no_color: bool,
            step: Range = (None, None),
            module: tuple[str, ...] = (),
            op: tuple[str, ...] = (),
            phase: tuple[str, ...] = (),
            rank: tuple[int, ...] = (),
            **own: Any,
        ) -> Any:
            chosen = Filters(steps=step, modules=module, ops=op, phases=phase, ranks=rank)
            target = None if output in (None, "-") else Path(str(output))
            return function(Request(paths, chosen, format_, target, force, not no_color), **own)

        options = _OUTPUT_OPTIONS + (_FILTER_OPTIONS if filters else ())
        return reduce(lambda f, option: option(f), reversed(options), with_request)

    return decorate
