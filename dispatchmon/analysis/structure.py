"""
The module tree of a model, with what went into each module and came out: shapes and dtypes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dispatchmon.reading.query import Filters, query
from dispatchmon.trace import Trace

_SQL = """
SELECT module, op, role, arg, dtype, shape, count(*) AS n, count(arguments) AS events, min(event) AS first
FROM trace
WHERE kind = 'module' AND phase <> 'recompute' AND (role IS NULL OR role IN ('input', 'output'))
GROUP BY ALL ORDER BY first, arg
"""
_COLUMNS = ("kind", "module", "op", "role", "arg", "dtype", "shape", "phase", "arguments", "event")


@dataclass(frozen=True)
class Port:
    """One tensor that goes in or comes out: its place, dtype and shape, and in how many calls it was so."""

    arg: str
    dtype: str
    shape: tuple[int, ...] | None
    count: int


@dataclass(frozen=True)
class ModuleShape:
    """One module; `calls` is 0 if it was not recorded. A place that had several shapes is there once for each."""

    name: str
    kind: str
    calls: int
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


@dataclass(frozen=True)
class Structure:
    """A model's modules, in the order in which the model names them; without a model, in order of first call."""

    model: str | None
    modules: tuple[ModuleShape, ...]

    @property
    def recorded(self) -> bool:
        """Whether the trace has any module call."""
        return any(module.calls for module in self.modules)


def structure(
    trace: Trace, filters: Filters | None = None, *, on_progress: Callable[[float], None] | None = None
) -> Structure:
    """
    Return the modules of the model with their inputs and outputs.

    Args:
        trace: the trace.
        filters: which rows count. With a filter on modules only those are returned.
        on_progress: called with the part of the trace that is read, from 0 to 1.

    Raises:
        NotATraceError: a batch is damaged.
    """
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for row in query(trace, _SQL, _COLUMNS, filters, on_progress=on_progress):
        rows.setdefault(row["module"] or "", []).append(row)
    metadata = trace.files[0].metadata
    named = [] if filters is not None and filters.modules else _named(metadata.get("modules") or ())
    kinds = dict(named) | {name: str(found[0]["op"]) for name, found in rows.items() if name not in dict(named)}
    order = {str(each.get("name")): i for i, each in enumerate(metadata.get("modules") or ())}
    names = sorted(kinds, key=lambda name: order.get(name, len(order)))
    modules = tuple(_module(name, kinds[name], rows.get(name, [])) for name in names)
    return Structure(metadata.get("model"), modules)


def _named(modules: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    return [(str(each["name"]), str(each.get("class"))) for each in modules if "name" in each]


def _module(name: str, kind: str, rows: list[Mapping[str, Any]]) -> ModuleShape:
    def calls(role: str | None) -> int:
        return sum(row["events"] for row in rows if row["role"] == role)

    def ports(role: str) -> tuple[Port, ...]:
        return tuple(
            Port(row["arg"], row["dtype"], None if row["shape"] is None else tuple(row["shape"]), row["n"])
            for row in rows
            if row["role"] == role
        )

    return ModuleShape(name, kind, calls("input") or calls("output") or calls(None), ports("input"), ports("output"))
