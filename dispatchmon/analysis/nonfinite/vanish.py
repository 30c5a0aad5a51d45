"""
Overflows that became exact zeros, and a result with them: `x * rsqrt(mean(x ** 2))` in float16 is 0 where x is large.

No NaN is left, and nothing but the result is wrong. Many an Inf becomes 0 rightly, though: masks, 1 / (1 + exp(x)), far
neighbours. So it is said only where the zeros are far from what they stand for: of a square, a sum, a norm or a product it
is known how large it can have been, its inverse was at least as large as that says, and what was multiplied by 0 would
have been of the size of the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, prod, sqrt

from dispatchmon.analysis.nonfinite.behaviour import plain
from dispatchmon.analysis.nonfinite.findings import ORIGIN, Finding
from dispatchmon.analysis.nonfinite.rows import FINITE_MAX, Event, Row, events_between, events_by_number
from dispatchmon.analysis.nonfinite.search import Search
from dispatchmon.reading.trace_files import TraceFiles

MOST_LOOKED_UP = 5  # overflows of different lines
LOOK_AHEAD = 1000  # events after the zeros
SHARE = 0.01  # of the result's magnitude, from which on what is missing counts
LEAST = 0.1  # magnitude that a result has in any case: it may be nothing but zeros
_CHECKS = frozenset("isinf isfinite isnan isposinf eq ne gt ge lt le where nan_to_num masked_fill index_put".split())
_COPIES = frozenset({"_to_copy", "clone", "copy"})
_SUMS = frozenset({"norm", "linalg_vector_norm", "mean", "sum"})
_PRODUCTS = frozenset({"mm", "bmm", "addmm", "baddbmm", "dot", "mv"})


@dataclass
class Vanishing:
    """An overflow, who made zeros of it, who multiplied by them, and where that went."""

    found: Finding
    zeroed: Event
    result: Event
    zeros: int
    spread: dict[str, tuple[Event, str | None]]
    count: int = 1


def vanishings(trace: TraceFiles, rank: int, search: Search, wanted: list[Finding]) -> list[Vanishing]:
    """The overflows of these findings that spoiled a result as zeros, one for each line."""
    lines: dict[tuple[str, str | None, str | None], list[Finding]] = {}
    for found in wanted:
        row = found.row
        if found.kind == ORIGIN and found.made == {"inf"} and found.cleared_by and row.phase != "backward":
            lines.setdefault((row.op, row.module, row.source), []).append(found)
    answer = []
    for alike in list(lines.values())[:MOST_LOOKED_UP]:
        for found in alike[:MOST_LOOKED_UP]:
            if (vanishing := vanishing_of(trace, rank, search, found)) is not None:
                vanishing.count = len(alike)
                answer.append(vanishing)
                break
    return answer


def vanishing_of(trace: TraceFiles, rank: int, search: Search, found: Finding) -> Vanishing | None:
    """What became of one overflow, if it is harmful."""
    overflow = search.events.get(found.event)
    size = None if overflow is None else largest_possible(overflow, found.row)
    if size is None:
        return None
    cleared = set(found.cleared_by[:8])
    for number, event in sorted(events_by_number(trace, rank, cleared).items()):
        spoiled = next((row for row in event.inputs if row.nonfinite), None)
        inverse = None if spoiled is None else least_inverse(event, spoiled, grown(search, found, spoiled, size))
        if inverse is None:
            continue
        held = {
            row.storage for n in search.roots if found.number in search.roots[n] for row in search.events[n].outputs
        }
        after = events_between(trace, rank, number, number + LOOK_AHEAD)
        before = events_between(trace, rank, found.event + 1, number)
        if any(each.operation in _CHECKS and not held.isdisjoint(r.storage for r in each.inputs) for each in before):
            return None
        if (vanishing := follow(search, found, event, inverse, after, held)) is not None:
            return vanishing
    return None


def largest_possible(event: Event, out: Row) -> float | None:
    """How large an element that overflowed can have been; None if that is not known, or it was no overflow."""
    inputs = [row for row in event.inputs if row.is_float]
    magnitudes = [row.magnitude for row in inputs]
    if not inputs or any(m is None for m in magnitudes) or any(row.nonfinite for row in inputs):
        return None
    most = max(m for m in magnitudes if m is not None)
    operation, n = event.operation, (inputs[0].numel or 0) / max(1, out.numel or 0)
    exponent = event.arguments.get("exponent")
    size = None
    if operation == "square" or operation == "mul" and len(inputs) == 2:
        size = prod(m for m in magnitudes if m is not None) if operation == "mul" else most * most
    elif operation == "pow" and isinstance(exponent, int | float) and 1 < exponent <= 4:
        size = power(most, exponent)
    elif operation == "_to_copy":
        size = most
    elif operation in _SUMS:
        size = most * (n if operation == "sum" else 1 if operation == "mean" else sqrt(n))
    elif operation in _PRODUCTS and len(magnitudes) >= 2:
        *_, left, right = inputs
        size = (left.magnitude or 0) * (right.magnitude or 0) * (left.shape or (1,))[-1]
    return size if size is not None and size > FINITE_MAX.get(out.dtype or "", float("inf")) else None


def power(x: float, exponent: float) -> float:
    """A power; Inf beyond what a float can hold."""
    try:
        return float(x**exponent)
    except OverflowError:
        return inf


def grown(search: Search, found: Finding, spoiled: Row, size: float) -> float:
    """How large the element can have been in the value that was inverted: sums and roots lie between."""
    numbers = [n for n in search.roots if found.number in search.roots[n] and found.event < n < spoiled.event]
    at = next(
        (n for n in reversed(numbers) if any(r.storage == spoiled.storage for r in search.events[n].outputs)), None
    )
    path = []
    while at is not None and at > found.event:
        path.append(search.events[at])
        at = next((n for n in search.sources.get(at, ()) if n >= found.event and found.number in search.roots[n]), None)
    for event in reversed(path):
        if event.operation == "sqrt":
            size = sqrt(size)
        elif event.operation == "sum" and event.inputs:
            size *= (event.inputs[0].numel or 1) / max(1, event.outputs[0].numel or 1)
    return size


def least_inverse(event: Event, spoiled: Row, size: float) -> float | None:
    """What an operator should have made of the element instead of 0, at least; None if it inverts nothing."""
    out = next((row for row in event.outputs if row.is_float), None)
    if out is None or not out.zero or out.nonfinite or size <= 0:
        return None
    exponent = event.arguments.get("exponent")
    if event.operation == "rsqrt":
        return 1 / sqrt(size)
    if event.operation == "reciprocal":
        return 1 / size
    if event.operation == "pow" and isinstance(exponent, int | float) and -2 <= exponent < 0:
        return power(size, exponent)
    if event.operation == "div" and plain(spoiled.arg) == "other":
        numerator = next((row.magnitude for row in event.inputs if plain(row.arg) == "self"), None)
        return None if numerator is None else numerator / size
    return None


def follow(
    search: Search, found: Finding, zeroed: Event, inverse: float, after: list[Event], held: set[int | None]
) -> Vanishing | None:
    """Follow the zeros to where something large is multiplied by them, and its result to where it matters."""
    missing: dict[int | None, float] = {row.storage: inverse for row in zeroed.outputs if row.is_float}
    tainted: set[int | None] = set()
    unread: dict[int | None, Event] = {}
    spread: dict[str, tuple[Event, str | None]] = {}
    result, zeros = None, 0
    for event in after:
        read = {row.storage for row in event.inputs}
        own_result: set[int | None] = set() if result is None else {row.storage for row in result.outputs}
        if event.operation in _CHECKS and not read.isdisjoint(held | set(missing) | own_result):
            return None  # the program looks for it, and puts something else there
        out = next((row for row in event.outputs if row.is_float), None)
        if out is None:
            continue
        share = None
        is_division = event.first.event == zeroed.first.event and event.operation == "div"
        if event.first.event > zeroed.first.event or is_division:
            share = inverse if is_division else taken(event, missing)
        if share is not None and result is None:
            own = max((row.zero or 0 for row in event.inputs if row.storage not in missing), default=0)
            if out.nonfinite == 0 and (out.zero or 0) > own and share >= SHARE * max(out.magnitude or 0.0, LEAST):
                result, zeros = event, out.zero or 0
                tainted.add(out.storage)
                unread[out.storage] = event
                continue
            missing[out.storage] = share
        if result is None or read.isdisjoint(tainted):
            continue
        for row in event.inputs:
            unread.pop(row.storage, None)
        for row in event.outputs:
            if row.is_float:
                tainted.add(row.storage)
                unread[row.storage] = event
                reached(search, row, event, spread)
    if result is None:
        return None
    if not spread and unread and after[-1].first.event < zeroed.first.event + LOOK_AHEAD - 1:
        spread["end"] = (list(unread.values())[-1], None)
    return Vanishing(found, zeroed, result, zeros, spread)


def taken(event: Event, missing: dict[int | None, float]) -> float | None:
    """What is missing of a product, at least: what was multiplied by 0 times what should have stood there."""
    lacking = next((row for row in event.inputs if row.storage in missing), None)
    if lacking is None:
        return None
    if event.operation in _COPIES:
        missing.update({row.storage: missing[lacking.storage] for row in event.outputs})
    if event.operation != "mul":
        return None
    other = next((row for row in event.inputs if row is not lacking and row.storage != lacking.storage), None)
    if other is None:
        scalar = event.arguments.get("other", event.arguments.get("scalar"))
        return abs(scalar) * missing[lacking.storage] if isinstance(scalar, int | float) else None
    return None if other.magnitude is None or other.nonfinite else other.magnitude * missing[lacking.storage]


def reached(search: Search, row: Row, event: Event, spread: dict[str, tuple[Event, str | None]]) -> None:
    """Note the places that matter which it has reached."""
    if (row.storage, row.version or 0) in search.wanted.losses:
        spread.setdefault("loss", (event, None))
    if row.name is not None:
        spread.setdefault(search.kind_of(row.name, event.first.phase == "optimizer"), (event, row.name))
