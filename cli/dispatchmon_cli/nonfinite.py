"""
`dispatchmon nonfinite`: where the first NaN or Inf was born, what led there, and where it went.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from dispatchmon.analysis.nonfinite import NonFinite, Origin, find_nonfinite
from dispatchmon.analysis.nonfinite.answer import Link, Place, Reached
from dispatchmon_cli.layout import Cells
from dispatchmon_cli.options import Request, reads_trace
from dispatchmon_cli.progress import progress_bar
from dispatchmon_cli.wording import count, counted, in_module, number

_COLUMNS = ("event", "rank", "step", "phase", "op", "module", "source", "kind", "what", "inputs_finite")
_NESTED = ("inputs", "outputs", "forward", "cause", "growth", "spread")
_PLACES = {
    "loss": "the loss",
    "gradient": "the gradient",
    "parameter": "the parameter",
    "buffer": "the buffer",
    "state": "the state of the optimizer",
    "end": "a value that nobody read any more",
}
_MOST_ORIGINS, _MOST_LINES, _MOST_CHAIN = 5, 5, 8


@click.command()
@reads_trace()
def command(request: Request) -> int:
    """Where the first NaN or Inf was born, what led there, and where it went."""
    with request.open_report() as report:
        trace = request.open_trace()
        with progress_bar("reading") as on_progress:
            answer = find_nonfinite(trace, request.filters, on_progress=on_progress)
        records = [_record(origin) for origin in answer.origins]
        report.write(
            document={
                "format": 1,
                "first": records[0] if records else None,
                "origins": records,
                "deliberate": [asdict(each) for each in answer.deliberate],
                "uninitialised": [asdict(each) for each in answer.uninitialised],
                "notes": [asdict(each) for each in answer.notes],
                "largest": None if answer.largest is None else asdict(answer.largest),
                "tensors": answer.tensors,
                "unmeasured": answer.unmeasured,
                "warnings": list(trace.warnings),
            },
            records=records,
            columns=(*_COLUMNS, "message", *_NESTED),
            cells=_cells(answer) if report.format == "markdown" else Cells((), []),
            closing=_told(answer),
        )
    return 2 if answer.found else 0


def _record(origin: Origin) -> dict[str, Any]:
    whole = asdict(origin)
    return {name: whole[name] for name in (*_COLUMNS, "message", *_NESTED)}


def _cells(answer: NonFinite) -> Cells:
    rows = [[str(o.step), o.phase, o.op, in_module(o.module), o.source or "", o.message] for o in answer.origins]
    return Cells(("step", "phase", "operator", "module", "source line", "what happened"), rows, numeric=False)


# ------------------------------------------------------------------------------------------------- for people
def _told(answer: NonFinite) -> list[str]:
    """Say it: the first origin with its chain, then the others in a line each, then what is worth knowing."""
    said: list[str] = []
    ranks = len(answer.ranks) > 1
    if answer.first is not None:
        said += [_sentence(answer.first.message, answer.first, ranks), *_below(answer.first)]
    matters = [each for each in answer.uninitialised if each.matters]
    for each in matters[:_MOST_LINES]:
        said += ["", _sentence(each.message, each, ranks)]
    if len(matters) > _MOST_LINES:
        said.append(f"  … and {count(len(matters) - _MOST_LINES)} more like it")
    if rest := answer.origins[1:]:
        said += ["", f"{counted(len(rest), 'more origin')}:" if len(rest) > 1 else "Another origin:"]
        said += [f"  {_sentence(origin.message, origin, ranks)}" for origin in rest[:_MOST_ORIGINS]]
        if len(rest) > _MOST_ORIGINS:
            said.append(f"  … and {count(len(rest) - _MOST_ORIGINS)} more; --format json has all of them")
    if not answer.found:
        said.append(_nothing(answer))
    notes = [note.message for note in answer.notes]
    if notes:
        said += ["", "Notes:"] + [f"  {_upper(note)}." for note in notes[:_MOST_LINES]]
        if len(notes) > _MOST_LINES:
            said.append(f"  … and {count(len(notes) - _MOST_LINES)} more; --format json has all of them")
    if answer.unmeasured and answer.unmeasured < answer.tensors:
        said += ["", f"{count(answer.unmeasured)} of {counted(answer.tensors, 'value')} were not measured: "
                 "whether they held NaN or Inf is unknown."]  # fmt: skip
    return said[1:] if said and not said[0] else said


def _sentence(message: str, place: Place, ranks: bool) -> str:
    return _upper(message) + (f" (rank {place.rank})." if ranks else ".")


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _below(origin: Origin) -> list[str]:
    """Return the chain below an origin: what led there, nearest first, and what it reached."""
    said = _list("led there by, nearest first:", origin.cause)
    said += _list("grown from, nearest first:", origin.growth)
    if origin.spread:
        said.append("  went on to:")
        said += [f"    {_reached(what, where)}" for what, where in origin.spread.items()]
    else:
        said.append("  went on to: nothing that was recorded")
    return said


def _list(title: str, links: tuple[Link, ...]) -> list[str]:
    if not links:
        return []
    shown = links if len(links) <= _MOST_CHAIN else (*links[: _MOST_CHAIN - 1], links[-1])
    lines = [f"    {link.message}" for link in shown]
    if len(shown) < len(links):
        lines.insert(_MOST_CHAIN - 1, f"    … {counted(len(links) - len(shown), 'event')} between")
    return [f"  {title}", *lines]


def _reached(what: str, where: Reached) -> str:
    name = f" {where.name}" if where.name else ""
    line = f" at {where.source.partition(' in ')[0]}" if where.source else ""
    return f"{_PLACES[what]}{name}: {where.op} {in_module(where.module)}{line}, step {count(where.step)}, {where.phase}"


def _nothing(answer: NonFinite) -> str:
    """Say that there is nothing to alarm about, and how large the numbers got."""
    if not answer.tensors:
        return "The trace shows no floating values."
    if answer.unmeasured == answer.tensors:
        return "NaN and Inf were not counted in this trace; record it with the statistics nan and inf."
    largest = answer.largest
    how_large = (
        f"the largest magnitude is {number(largest.magnitude)} in {largest.dtype} "
        f"({largest.op} {in_module(largest.module)}, step {count(largest.step)})."
        if largest is not None
        else "no magnitude was measured."
    )
    if answer.deliberate:
        n = len(answer.deliberate)
        return (
            f"No NaN or Inf to worry about: {counted(n, 'operator call')} filled {'it' if n == 1 else 'them'} in on "
            f"purpose, as masks do, and no harm came of it; {how_large}"
        )
    if answer.notes:
        return f"No NaN or Inf reached a loss, a gradient, a parameter or a result; {how_large}"
    return f"No NaN or Inf was seen; {how_large}"
