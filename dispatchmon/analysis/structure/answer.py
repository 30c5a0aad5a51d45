"""
The answer of `structure`: the modules of a model, with what went in and came out.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from dispatchmon.analysis.answer import Answer
from dispatchmon.words.documents import document
from dispatchmon.words.figures import count, counted
from dispatchmon.words.names import module_name
from dispatchmon.words.tables import Cells

_ALONE = ("input[0]", "output")  # places that need no name where they are the only one
_INDENT = "  "


@dataclass(frozen=True)
class Port:
    """One tensor that goes in or comes out: its place, dtype and shape, and in how many calls it was so."""

    arg: str
    dtype: str
    shape: tuple[int, ...] | None
    count: int


@dataclass(frozen=True)
class ModuleShape:
    """
    One name of a module.

    Attributes:
        name: the qualified name; "" is the model itself.
        kind: the module's class.
        calls: how many calls were recorded under this name; 0 if none was.
        inputs: what went in. A place that had several shapes is there once for each.
        outputs: what came out, likewise.
        same_as: where a module is registered under several names, the first of them, at each of the others.
    """

    name: str
    kind: str
    calls: int
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    same_as: str | None = None

    @property
    def first_name(self) -> str:
        """The name that tells this module from every other."""
        return self.name if self.same_as is None else self.same_as


@dataclass(frozen=True, repr=False)
class Structure(Answer):
    """
    A model's modules, in the order in which the model names them; without a model, in order of first call.

    Attributes:
        model: the model's class; None if the monitor was given none.
        modules: its modules, one for each name.
        warnings: what must be known before trusting the trace, one sentence each.
    """

    model: str | None
    modules: tuple[ModuleShape, ...]
    warnings: tuple[str, ...] = ()

    items = "modules"
    columns = ("name", "class", "calls", "inputs", "outputs", "same_as")

    @property
    def recorded(self) -> bool:
        """Whether the trace has any module call."""
        return any(module.calls for module in self.modules)

    def to_dict(self) -> dict[str, Any]:
        modules = [_document(module) for module in self.modules]
        return document({"format": 1, "model": self.model, "modules": modules, "warnings": self.warnings})

    def table(self) -> Cells:
        rows = [
            [_indented(m.name), _kind(m), count(m.calls) if m.calls else "-", _ports(m.inputs), _ports(m.outputs)]
            for m in self.modules
        ]
        titles = ("module", "class", "calls", "inputs", "outputs")
        return Cells(titles, rows, numeric=False, cut=frozenset({0, 3, 4}), spare=(1,))

    def closing(self) -> list[str]:
        if not self.recorded:
            return ['No module call is in this trace: record it with record=("modules",); stats=() is enough.']
        return [f"{self._counts()}."]

    def gist(self) -> str:
        return f"{self.model or 'no model'}, {self._counts()}"

    def _counts(self) -> str:
        all_of = {module.first_name for module in self.modules}
        called = {module.first_name for module in self.modules if module.calls}
        calls = counted(sum(module.calls for module in self.modules), "call")
        return f"{count(len(called))} of {counted(len(all_of), 'module')} recorded, {calls}"


def _document(module: ModuleShape) -> dict[str, Any]:
    sides = {"inputs": module.inputs, "outputs": module.outputs}
    return {
        "name": module.name,
        "class": module.kind,
        "calls": module.calls,
        **{side: [asdict(port) for port in ports] for side, ports in sides.items()},
        "same_as": module.same_as,
    }


def _indented(name: str) -> str:
    """The last part of a name, below that of its parent: a tree."""
    return _INDENT * (name.count(".") + 1) + name.rpartition(".")[2] if name else "(model)"


def _kind(module: ModuleShape) -> str:
    return module.kind if module.same_as is None else f"{module.kind} (is {module_name(module.same_as)})"


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
