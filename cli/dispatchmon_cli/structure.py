"""
`dispatchmon structure`: the module tree, with what went in and came out.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from dispatchmon.analysis.structure import ModuleShape, Port, Structure, structure
from dispatchmon_cli.layout import Cells
from dispatchmon_cli.options import Request, reads_trace
from dispatchmon_cli.progress import progress_bar
from dispatchmon_cli.wording import count, counted

_COLUMNS = ("name", "class", "calls", "inputs", "outputs")
_ALONE = ("input[0]", "output")  # places that need no name where they are the only one
_INDENT = "  "


@click.command()
@reads_trace()
def command(request: Request) -> None:
    """The module tree, with shapes and dtypes of what went in and came out."""
    with request.open_report() as report:
        trace = request.open_trace()
        with progress_bar("reading") as on_progress:
            answer = structure(trace, request.filters, on_progress=on_progress)
        records = [_record(module) for module in answer.modules]
        report.write(
            document={"format": 1, "model": answer.model, "modules": records, "warnings": list(trace.warnings)},
            records=records,
            columns=_COLUMNS,
            cells=_cells(answer),
            closing=_closing(answer),
        )


def _record(module: ModuleShape) -> dict[str, Any]:
    sides = {"inputs": module.inputs, "outputs": module.outputs}
    return {
        "name": module.name,
        "class": module.kind,
        "calls": module.calls,
        **{side: [asdict(port) for port in ports] for side, ports in sides.items()},
    }


def _cells(answer: Structure) -> Cells:
    rows = [
        [_indented(m.name), m.kind, count(m.calls) if m.calls else "-", _ports(m.inputs), _ports(m.outputs)]
        for m in answer.modules
    ]
    return Cells(
        ("module", "class", "calls", "inputs", "outputs"), rows, numeric=False, cut=frozenset({0, 3, 4}), spare=(1,)
    )


def _indented(name: str) -> str:
    """The last part of a name, below that of its parent: a tree."""
    return _INDENT * (name.count(".") + 1) + name.rpartition(".")[2] if name else "(model)"


def _ports(ports: tuple[Port, ...]) -> str:
    """`[8, 16] float32`; with their places if there are several; the first shape of each, and how many others it had."""
    places: dict[str, list[Port]] = {}
    for port in ports:
        places.setdefault(port.arg, []).append(port)
    said = []
    for place, found in places.items():
        first = found[0]
        text = f"{'?' if first.shape is None else list(first.shape)} {first.dtype}"
        if len(places) > 1 or place not in _ALONE:
            text = f"{place} {text}"
        if len(found) > 1:
            text += f" (and {counted(len(found) - 1, 'other')})"
        said.append(text)
    return ", ".join(said) or "-"


def _closing(answer: Structure) -> list[str]:
    if not answer.recorded:
        return ['No module call is in this trace: record it with record=("modules",); stats=() is enough.']
    called = sum(1 for module in answer.modules if module.calls)
    return [f"{count(called)} of {counted(len(answer.modules), 'module')} recorded, {_calls(answer)}."]


def _calls(answer: Structure) -> str:
    return counted(sum(module.calls for module in answer.modules), "call")
