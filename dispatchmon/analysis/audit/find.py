"""
`audit`: from the rows of a trace to every in-place write, and which of them are hazards.

What destroyed a saved value or took an argument was found while recording and stands in `hazard` rows; the rest (operands
that share memory, undeclared writes, writes to buffers) is read from the rows of the operators.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow.compute as pc

from dispatchmon.analysis.audit.answer import STATISTICS, WRITE, Audit, Finding, Victim, Writes
from dispatchmon.analysis.audit.overlaps import overlapping_writes
from dispatchmon.analysis.audit.suggestions import suggestion
from dispatchmon.reading.contents import Test, Within
from dispatchmon.reading.forms import FINDING, read_arguments
from dispatchmon.reading.query import Filters, query
from dispatchmon.reading.trace_files import TraceFiles
from dispatchmon.schema import MUTATIONS, PHASES
from dispatchmon.words.hazards import NOBODY, SEVERITIES, sentence

MOST_NAMES = 5  # that a finding says beside its first
_ORDER = ("error", "warning", "note")
# Operators of torch itself, of which some have schemas that hide a write.
_KNOWN_LIARS = ("aten.", "c10d.", "_c10d_functional.", "fsdp.", "inductor.", "prims.", "quantized.", "symm_mem.")
_WHAT = ("op", "module", "phase", "source", "arg", "name", "shape", "dtype")

# Which batches have such rows.
_HAZARD: Within = {"kind": frozenset({"hazard"})}
_WRITING: Within = {"mutation": frozenset(MUTATIONS) - {"none"}}

_HAZARDS = f"""
SELECT {", ".join(_WHAT)}, arguments, role, min(rank) AS rank, min(step) AS step,
    arg_min(cause_event, event) AS event, arg_min(forward_event, event) AS victim, min(event) AS "first",
    count(DISTINCT (rank, cause_event)) AS writes, count(*) AS times, mutation
FROM trace WHERE kind = 'hazard' GROUP BY {", ".join(_WHAT)}, arguments, role, mutation ORDER BY "first"
"""
_BLOCKED_BY = ("rank", "cause_event", "arguments")
_BLOCKED = """
SELECT DISTINCT rank, cause_event FROM trace WHERE kind = 'hazard' AND arguments LIKE '{"finding": "blocked-write"%'
"""
_OVERLAPPING = """
SELECT rank, event, step, op, module, phase, source, arg, name, shape, dtype FROM trace
WHERE kind = 'op' AND written AND role = 'input' AND event IN (SELECT unnest($events))
"""
_UNDECLARED = """
SELECT op, module, phase, source, min(rank) AS rank, min(event) AS event, min(step) AS step,
    count(DISTINCT (rank, event)) AS times, list(DISTINCT arg ORDER BY arg) AS args, list(DISTINCT name ORDER BY name) AS names,
    arg_min(shape, event) AS shape, arg_min(dtype, event) AS dtype
FROM trace WHERE kind = 'op' AND mutation = 'undeclared' AND written AND role = 'input'
GROUP BY op, module, phase, source
"""
_BUFFERS = """
SELECT op, module, phase, source, arg, name, shape, dtype, min(rank) AS rank, min(event) AS event, min(step) AS step,
    count(*) AS times
FROM trace
WHERE kind = 'op' AND written AND role = 'input' AND mutation <> 'undeclared' AND name IS NOT NULL AND phase <> 'optimizer'
    AND NOT list_contains($parameters, name)
GROUP BY op, module, phase, source, arg, name, shape, dtype
"""
_INVENTORY = """
SELECT op, module, mutation, list(DISTINCT phase ORDER BY phase) AS phases, count(arguments) AS calls,
    count(DISTINCT step) AS steps, arg_min(source, event) AS source
FROM trace WHERE kind = 'op' AND mutation <> 'none' GROUP BY op, module, mutation
HAVING count(arguments) > 0 ORDER BY calls DESC, op, module NULLS FIRST
"""
_EVENTS = f"""
SELECT rank, event, op, module, phase, source, name, arg, role, written, storage, {", ".join(STATISTICS)} FROM trace
WHERE kind = 'op' AND event IN (SELECT unnest($events))
"""


def audit(
    trace: TraceFiles,
    filters: Filters | None = None,
    *,
    every_write: bool = False,
    top: int = 20,
    on_progress: Callable[[float], None] | None = None,
) -> Audit:
    """
    Find the hazards of a trace, and count what it wrote.

    Args:
        trace: the trace.
        filters: which writes to look at (default all).
        every_write: list each tensor that was written as well.
        top: how many rows the answer's table shows; 0 is all.
        on_progress: called while reading, with the part that is done, from 0 to 1.

    Raises:
        NotATraceError: the trace is damaged.
    """
    filters = filters or Filters()
    inventory = tuple(
        Writes(**{**row, "phases": tuple(row["phases"])})
        for row in query(
            trace, _INVENTORY, ("kind", "op", "module", "mutation", "phase", "arguments", "step", "source", "event"),
            filters, within=_WRITING, on_progress=on_progress)
    )  # fmt: skip
    found = [*recorded(trace, filters)]
    refused = query(trace, _BLOCKED, ("kind", *_BLOCKED_BY), filters, within=_HAZARD)
    blocked = {(row["rank"], row["cause_event"]) for row in refused}
    found += overlapping(trace, filters, blocked)
    found += undeclared(trace, filters)
    found += buffers(trace, filters)
    found = [*with_details(trace, merged(found))]
    found.sort(key=lambda f: (not f.explains, _ORDER.index(f.severity), f.rank, f.event))
    return Audit(
        writes=sum(w.calls for w in inventory),
        findings=tuple(found),
        inventory=inventory,
        warnings=(*trace.warnings, *limits(trace)),
        every_write=tuple(all_writes(trace, filters)) if every_write else None,
        top=top,
    )


def limits(trace: TraceFiles) -> Iterator[str]:
    """Say what was not audited."""
    for file in trace.files:
        phases = (file.metadata.get("settings") or {}).get("phases")
        if phases and set(phases) != set(PHASES):
            yield (
                f"{file.path.name} holds the phases {', '.join(phases)} only: saved values and arguments were not audited"
            )


def recorded(trace: TraceFiles, filters: Filters) -> Iterator[Finding]:
    """What was found while recording."""
    columns = (*_WHAT, "kind", "arguments", "role", "rank", "step", "event", "cause_event", "forward_event", "mutation")
    for row in query(trace, _HAZARDS, columns, filters, within=_HAZARD):
        details = read_arguments(row["arguments"], row["event"], FINDING)
        by_bytes = "finding" not in details  # found by digests: nobody is known to have written
        kind = details.get("finding", "undeclared-write")
        if by_bytes:
            details["noticed"] = True
        place = details.get("victim")
        victim = None
        if place is not None:
            victim = Victim(row["victim"], place[0], place[1], None, place[2], None)
        elif details.get("returned"):
            victim = Victim(None, "return", None, None, None, None)
        count = row["writes"] if kind == "input-overwritten" else row["times"]
        finding = make(row, kind, details, victim, count, loud=row["role"] == "loud")
        if kind == "write-after-save":
            finding = replace(
                finding, raises=row["role"] == "loud", saved_as=details.get("saved_as"),
                explains=bool(details.get("explains")),
            )  # fmt: skip
        elif kind == "blocked-write":
            finding = replace(finding, raises=True, explains=bool(details.get("explains")))
        yield finding


def make(
    row: dict[str, Any], kind: str, details: dict[str, Any], victim: Victim | None, count: int, loud: bool = False
) -> Finding:
    """A finding out of a row that says what wrote where."""
    shape = None if row["shape"] is None else tuple(row["shape"])
    severity = "note" if details.get("known") else SEVERITIES[kind]
    found = Finding(
        kind, severity, row["event"], row["rank"], row["step"], row["phase"], row["op"], row["module"], row["source"],
        row["arg"], row["name"], shape, row["dtype"], "", details=details, victim=victim, count=count,
    )  # fmt: skip
    return replace(found, message=said(found, details, loud))


def merged(found: Sequence[Finding]) -> list[Finding]:
    """One finding for each place: of an overwritten input, whoever read it first stands for all."""
    kept: dict[Any, Finding] = {}
    with_victim = {(f.rank, f.event) for f in found if f.kind == "undeclared-write" and f.victim is not None}
    for f in found:
        if f.kind == "undeclared-write" and f.victim is None and (f.rank, f.event) in with_victim:
            continue
        if f.kind == "input-overwritten":
            key: Any = (f.kind, f.op, f.module, function_of(f.source), re.sub(r"\[\d+\]", "[]", f.arg or ""))
        elif f.kind == "alias-overwritten":
            key = (f.kind, f.op, f.phase, f.source, f.victim and (f.victim.op, f.victim.source), f.details.get("taken_at"))
        else:
            lost = f.victim and (f.victim.op, f.victim.module, f.victim.source)
            key = (f.kind, f.op, f.module, f.phase, f.source, f.name, f.saved_as, f.raises, lost)
        first = kept.get(key)
        if first is None:
            kept[key] = f
        elif f.kind == "input-overwritten":
            count = first.count + (f.count if f.event != first.event else 0)
            keep = first if first.victim is not None or f.victim is None else f
            lines = tuple(dict.fromkeys((*lines_of(first), *lines_of(f))))
            kept[key] = replace(keep, count=count, event=first.event, step=first.step, lines=lines)
        elif f.kind == "alias-overwritten":
            names = tuple(dict.fromkeys((*(first.names or (first.name,)), f.name)))
            kept[key] = replace(first, count=first.count + f.count, names=tuple(n for n in names if n))
        else:
            kept[key] = replace(first, count=first.count + f.count, explains=first.explains or f.explains)
    return [with_all_names(f) for f in kept.values()]


def function_of(source: str | None) -> str:
    """`train.py in forward` of `train.py:31 in forward`."""
    return re.sub(r":\d+ in ", " in ", source or "")


def lines_of(f: Finding) -> tuple[str, ...]:
    """Every line that a finding covers."""
    return f.lines or tuple(f.details.get("lines") or ((f.source,) if f.source else ()))


def with_all_names(f: Finding) -> Finding:
    """A finding of several lines or names says them all."""
    lines = [line for line in lines_of(f) if line]
    message = f.message
    if len(lines) > 1 and f.source:
        numbers = sorted({int(found[1]) for line in lines if (found := re.search(r":(\d+) in ", line))})
        message = message.replace(f.source, said_lines(f.source, numbers), 1)
    if len(f.names) > 1 and f.name:
        others = [name for name in f.names if name != f.name]
        more = f" and {len(others) - MOST_NAMES} more" if len(others) > MOST_NAMES else ""
        first = f"`{f.name}`" + (f" of shape {list(f.shape)}" if f.shape is not None else "")
        message = message.replace(first, f"{first} ({', '.join(others[:MOST_NAMES])}{more} as well)", 1)
    return replace(f, message=message, lines=tuple(lines), names=f.names or ((f.name,) if f.name else ()))


def said_lines(source: str, numbers: list[int]) -> str:
    """`train.py, lines 18 and 19, in forward`."""
    file, _, function = source.partition(":")
    *first, last = map(str, numbers)
    return f"{file}, lines {', '.join(first)} and {last}, in {function.split(' in ', 1)[-1]}" if first else source


def overlapping(trace: TraceFiles, filters: Filters, blocked: set[tuple[int, int]]) -> Iterator[Finding]:
    """Operands that share memory with what is written."""
    why = {(o.rank, o.event): o.why for o in overlapping_writes(trace, filters) if (o.rank, o.event) not in blocked}
    if not why:
        return
    columns = (*_WHAT, "kind", "written", "role", "rank", "event", "step")
    events = sorted({event for _, event in why})
    for row in query(trace, _OVERLAPPING, columns, filters, values={"events": events}, within=at(events)):
        if reason := why.pop((row["rank"], row["event"]), None):
            yield make(row, "overlapping-write", {"why": reason}, None, 1)


def undeclared(trace: TraceFiles, filters: Filters) -> Iterator[Finding]:
    """Operators that wrote what their schema does not declare."""
    columns = ("kind", "op", "module", "phase", "source", "rank", "event", "step", "arg", "name", "shape", "dtype")
    within: Within = {"mutation": frozenset({"undeclared"})}
    for row in query(trace, _UNDECLARED, (*columns, "mutation", "written", "role"), filters, within=within):
        names = [name for name in row.pop("names") if name]
        row |= {"arg": ", ".join(row.pop("args")), "name": ", ".join(names) or None}
        yield make(row, "undeclared-write", {"known": row["op"].startswith(_KNOWN_LIARS)}, None, row["times"])


def buffers(trace: TraceFiles, filters: Filters) -> Iterator[Finding]:
    """Writes to buffers: what has a name, and is neither a parameter, nor a gradient, nor an optimizer's state."""
    parameters = [p["name"] for file in trace.files for p in file.metadata.get("parameters") or ()]
    prefixes = tuple(f"{name}." for name in parameters)
    columns = (*_WHAT, "kind", "written", "role", "mutation", "rank", "event", "step")
    named = Test(("name", "written"), lambda batch: pc.and_(batch["written"], batch["name"].is_valid()).true_count > 0)
    values = {"parameters": parameters}
    for row in query(trace, _BUFFERS, columns, filters, values=values, within=_WRITING, test=named):
        if not row["name"].startswith(prefixes) and not row["name"].endswith(".grad"):
            yield make(row, "buffer-write", {}, None, row["times"])


def with_details(trace: TraceFiles, found: list[Finding]) -> Iterator[Finding]:
    """Add the statistics before and after the write, and what the victim's own rows say."""
    hazards = [f for f in found if f.severity != "note"]
    events = sorted({f.event for f in hazards} | {f.victim.event for f in hazards if f.victim and f.victim.event})
    classes = {m["name"]: m["class"] for file in trace.files for m in file.metadata.get("modules") or ()}
    rows: dict[tuple[int, int], list[dict[str, Any]]] = {}
    if events:
        columns = ("kind", *_WHAT, "rank", "event", "role", "written", "storage", *STATISTICS)
        for row in query(trace, _EVENTS, columns, values={"events": events}, within=at(events)):
            rows.setdefault((row["rank"], row["event"]), []).append(row)
    for f in found:
        if f.severity == "note":
            yield f
            continue
        tip = suggestion(f.kind, op=f.op, module=f.module, phase=f.phase, details=f.details, classes=classes)
        mine = [r for r in rows.get((f.rank, f.event), ()) if r["written"] and (f.name is None or r["name"] == f.name)]
        before = next((r for r in mine if r["role"] == "input"), None)
        after = next((r for r in mine if r["role"] == "output"), None)
        victim = f.victim
        if victim is not None and (theirs := rows.get((f.rank, victim.event or -1))):
            first = theirs[0]
            named = next((r["name"] for r in theirs if r["name"]), None)
            op, module, source = victim.op, victim.module, victim.source
            if op is None:
                op, module, source = first["op"], first["module"], first["source"]
            victim = Victim(victim.event, op, module, first["phase"], source, named)
        f = replace(f, before=statistics(before), after=statistics(after), victim=victim, suggestion=tip)
        yield noticed_by(f, rows[f.rank, f.event][0]) if f.op == NOBODY and (f.rank, f.event) in rows else f


def noticed_by(f: Finding, row: dict[str, Any]) -> Finding:
    """Nobody saw the write: say who noticed it."""
    f = replace(f, op=row["op"], module=row["module"], phase=row["phase"], source=row["source"])
    return replace(f, message=said(f, f.details, loud=False))


def said(f: Finding, details: Mapping[str, Any], loud: bool) -> str:
    """The sentence of a finding."""
    lost = None if f.victim is None else (f.victim.op, f.victim.module, f.victim.source)
    return sentence(
        f.kind, op=f.op, module=f.module, source=f.source, name=f.name, shape=f.shape, victim=lost, loud=loud,
        details=details,
    ).rstrip(".")  # fmt: skip


def at(events: Sequence[int]) -> Within:
    """The batches of these events."""
    return {"event": np.array(sorted(events), np.int64)}


def statistics(row: dict[str, Any] | None) -> dict[str, float | int | None] | None:
    """The statistics of a row, if there are any."""
    if row is None or all(row[name] is None for name in STATISTICS):
        return None
    return {name: row[name] for name in STATISTICS}


def all_writes(trace: TraceFiles, filters: Filters | None = None) -> Iterator[dict[str, Any]]:
    """Every tensor that was written, in order of events."""
    sql = (
        f"SELECT {', '.join(WRITE)} FROM trace WHERE kind = 'op' AND written AND role = 'input' AND mutation <> 'none'"
    )
    yield from query(trace, sql, (*WRITE, "kind", "written", "role", "mutation"), filters)
