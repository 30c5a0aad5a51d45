"""
`structure`: from the module calls of a trace to the module tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dispatchmon.analysis.structure.answer import ModuleShape, Port, Structure
from dispatchmon.reading.query import Filters, query
from dispatchmon.reading.trace_files import TraceFiles

_SQL = """
SELECT module, op, role, arg, dtype, shape, count(*) AS n, count(arguments) AS events, min(event) AS first
FROM trace
WHERE kind = 'module' AND phase <> 'recompute' AND (role IS NULL OR role IN ('input', 'output'))
GROUP BY ALL ORDER BY first, arg
"""
_COLUMNS = ("kind", "module", "op", "role", "arg", "dtype", "shape", "phase", "arguments", "event")


def structure(
    trace: TraceFiles, filters: Filters | None = None, *, on_progress: Callable[[float], None] | None = None
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
    described = metadata.get("modules") or ()
    order = {str(each.get("name")): i for i, each in enumerate(described)}
    same_as = {str(each.get("name")): each.get("same_as") for each in described}  # before format 1.1 there is none
    names = sorted(kinds, key=lambda name: order.get(name, len(order)))
    modules = tuple(_module(name, kinds[name], same_as.get(name), rows.get(name, [])) for name in names)
    return Structure(metadata.get("model"), modules, trace.warnings)


def _named(modules: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    return [(str(each["name"]), str(each.get("class"))) for each in modules if "name" in each]


def _module(name: str, kind: str, same_as: str | None, rows: list[Mapping[str, Any]]) -> ModuleShape:
    def calls(role: str | None) -> int:
        return sum(row["events"] for row in rows if row["role"] == role)

    def ports(role: str) -> tuple[Port, ...]:
        return tuple(
            Port(row["arg"], row["dtype"], None if row["shape"] is None else tuple(row["shape"]), row["n"])
            for row in rows
            if row["role"] == role
        )

    n_calls = calls("input") or calls("output") or calls(None)
    return ModuleShape(name, kind, n_calls, ports("input"), ports("output"), same_as)
