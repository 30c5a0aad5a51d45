"""
Findings in words, and as the dataclasses of the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Literal, cast

from dispatchmon.analysis.nonfinite.behaviour import behaviour, reads
from dispatchmon.analysis.nonfinite.findings import DELIBERATE, EXTERNAL, ORIGIN, TURNED, Finding
from dispatchmon.analysis.nonfinite.places import (
    Deliberate,
    Kind,
    Link,
    Note,
    Origin,
    Place,
    Reached,
    Uninitialised,
    Value,
)
from dispatchmon.analysis.nonfinite.rows import Event, Row
from dispatchmon.analysis.nonfinite.search import Search
from dispatchmon.words.figures import figure
from dispatchmon.words.nonfinite import amount, at, extent, kinds, made, operator_at, when

_KINDS: dict[str, Kind] = {ORIGIN: "made", TURNED: "turned", EXTERNAL: "external", DELIBERATE: "deliberate"}
MOST_LINKS = 12  # of a chain
_AT_ZERO = ("sqrt", "rsqrt", "norm", "pow", "div", "log", "reciprocal", "std", "cdist", "atan2")


class Teller:
    """Says what the search of one rank found; `rows_of` looks up events by number."""

    def __init__(self, search: Search, rank: int, rows_of: Callable[[int], Event | None]) -> None:
        self.search, self.rank, self.rows_of = search, rank, rows_of

    def event(self, number: int) -> Event | None:
        return self.search.events.get(number) or self.rows_of(number)

    def place(self, row: Row) -> Place:
        return Place(row.event, self.rank, row.step, row.phase, row.op, row.module, row.source)

    def parts(self, row: Row) -> tuple[int, int, int, str, str, str | None, str | None]:
        """What every answer begins with."""
        return row.event, self.rank, row.step, row.phase, row.op, row.module, row.source

    # ------------------------------------------------------------------------------------------------- origins
    def origin(self, found: Finding, growth: tuple[Link, ...] = ()) -> Origin:
        """A finding that matters."""
        row = found.row
        event = self.event(row.event) or Event([row])
        forward = self.event(row.forward_event) if row.forward_event is not None and row.phase == "backward" else None
        return Origin(
            *self.parts(row),
            kind=_KINDS[found.kind],
            what=cast(Literal["nan", "inf"], found.what),
            inputs_finite=found.inputs_finite and found.kind != EXTERNAL,
            inputs=tuple(value(each) for each in event.inputs),
            outputs=tuple(value(each) for each in event.outputs),
            forward=None if forward is None else self.place(forward.first),
            cause=self.chain(found),
            growth=growth,
            spread=self.spread(found),
            message=self.sentence(found, event, forward),
        )

    def sentence(self, found: Finding, event: Event, forward: Event | None) -> str:
        """What happened, in one sentence."""
        row = found.row
        if found.kind == EXTERNAL:
            named = f"`{row.name}`" if row.name else f"`{row.arg}`"
            return (
                f"{amount(row.counts)} of {row.numel} elements were already in {named} when "
                f"{operator_at(row.op, row.module)} first read it {when(row.source, row.step, row.phase)}"
            )
        if found.kind == DELIBERATE:
            return (
                f"{operator_at(row.op, row.module)} filled in {amount(row.counts)} on purpose "
                f"{when(row.source, row.step, row.phase)}"
            )
        b = behaviour(row.op)
        used = [each for each in event.inputs if each.is_float and reads(b, each)]
        text = made(
            op=row.op, module=row.module, counts=row.counts, numel=row.numel, dtype=row.dtype, source=row.source,
            step=row.step, phase=row.phase, inputs=[
                {"counts": i.counts, "measured": i.nan is not None or i.inf is not None, "min": i.min, "max": i.max}
                for i in used])  # fmt: skip
        if found.kind == TURNED and found.causes:
            text += f"; {self.because(found)}"
        if forward is not None:
            text += (
                f"; it is the gradient of {operator_at(forward.first.op, forward.first.module)}{at_forward(forward)}"
            )
        return text

    def because(self, found: Finding) -> str:
        """Where the Inf that turned to NaN began."""
        roots = [f for f in self.ancestors(found) if f.kind != TURNED] or self.ancestors(found)
        first = min(roots, key=lambda f: f.event)
        row = first.row
        did = {DELIBERATE: "was filled in on purpose by", EXTERNAL: "was already there when first read by"}
        return f"the {kinds(row.counts)} {did.get(first.kind, 'was made by')} {operator_at(row.op, row.module)}" + (
            f" {at(row.source)}" if row.source else "")  # fmt: skip

    def ancestors(self, found: Finding) -> list[Finding]:
        known: dict[int, Finding] = {}
        todo = sorted(found.causes)
        while todo:
            cause = self.search.findings[todo.pop()]
            if cause.number not in known:
                known[cause.number] = cause
                todo += sorted(cause.causes)
        return list(known.values())

    def chain(self, found: Finding) -> tuple[Link, ...]:
        """What led here, nearest first; of a long chain the nearest events and where it began."""
        numbers = self.search.chain(found)
        if len(numbers) > MOST_LINKS:
            numbers = [*numbers[: MOST_LINKS - 1], numbers[-1]]
        began = {f.event: f for f in self.ancestors(found)}
        links = []
        for number in numbers:
            event = self.event(number)
            if event is None:
                continue
            root = began.get(number)
            row = root.row if root is not None else next((r for r in event.outputs if r.nonfinite), event.first)
            links.append(Link(*self.parts(row), message=self.link(row, root)))
        return tuple(links)

    @staticmethod
    def link(row: Row, root: Finding | None) -> str:
        what = operator_at(row.op, row.module)
        at = when(row.source, row.step, row.phase)
        if root is not None and root.kind == EXTERNAL:
            return f"{amount(row.counts)} already in `{row.name or row.arg}` when {what} first read it {at}"
        verb = "passed on" if root is None else "filled in on purpose" if root.kind == DELIBERATE else "made"
        return f"{what} {verb} {amount(row.counts) or 'it'} {at}"

    def spread(self, found: Finding) -> dict[str, Reached]:
        """Where it went, also through what it turned into."""
        reached: dict[str, tuple[int, str | None]] = {}
        seen: set[int] = set()
        todo = [found.number]
        while todo:
            each = self.search.findings[todo.pop()]
            if each.number in seen:
                continue
            seen.add(each.number)
            todo += each.became
            for what, where in each.spread.items():
                reached[what] = min(reached.get(what, where), where, key=lambda w: w[0])
        answer = {}
        for what in ("loss", "gradient", "parameter", "buffer", "state", "end"):
            if what in reached and (event := self.event(reached[what][0])) is not None:
                answer[what] = Reached(*self.parts(event.first), name=reached[what][1])
        end = answer.pop("end", None)
        if end is not None and not answer:
            # what nobody reads any more after backward is the gradient of something
            answer["gradient" if end.phase == "backward" else "end"] = end
        return answer

    # ------------------------------------------------------------------------------------------------- the others
    def deliberate(self, found: Finding) -> Deliberate:
        row = found.row
        return Deliberate(
            *self.parts(row),
            what=cast(Literal["nan", "inf"], found.what),
            message=self.sentence(found, Event([row]), None),
        )

    def uninitialised(self, found: Finding, matters: bool) -> Uninitialised:
        """Memory that was read before it was written."""
        row, reader = found.row, found.reader or found.row
        return Uninitialised(
            *self.parts(row),
            reader=self.place(reader),
            written=found.written,
            matters=matters,
            message=(
                f"{operator_at(reader.op, reader.module)} read memory of {operator_at(row.op, row.module)}"
                f"{f' {at(row.source)}' if row.source else ''} of which {found.written:.1%} had been written "
                f"{when(reader.source, reader.step, reader.phase)}"
            ),
        )

    def cleared(self, found: Finding) -> Note:
        """An origin of which nothing is left."""
        event = self.event(found.row.event) or Event([found.row])
        text = self.sentence(found, event, None)
        if found.cleared_by and (by := self.event(found.cleared_by[0])) is not None:
            row = by.first
            text += f"; {operator_at(row.op, row.module)} cleared it {when(row.source, row.step, row.phase)}"
        return Note("cleared", text, self.place(found.row))


def value(row: Row) -> Value:
    """A row as a value of the answer."""
    return Value(**{f.name: getattr(row, f.name) for f in fields(Value)})


def at_forward(forward: Event) -> str:
    """The forward line, and what in its numbers made the gradient non-finite."""
    first = forward.first
    line = f" {at(first.source)}" if first.source else ""
    inputs = [row for row in forward.inputs if row.is_float]
    spoiled = next((row for row in forward.outputs if row.nonfinite), None)
    name = first.op.split(".")[1].lstrip("_") if "." in first.op else first.op
    zeros = sum(row.zero or 0 for row in inputs)
    flat = sum(row.zero or 0 for row in forward.outputs if row.is_float) if "norm" in name else 0
    if spoiled is not None:
        return f"{line}, whose result held {amount(spoiled.counts)}"
    if flat:
        return f"{line}, whose result was 0 in {flat} places"
    if zeros and any(word in name for word in _AT_ZERO):
        return (
            f"{line}, whose input was 0 in {figure(zeros)} places"
            if zeros > 1
            else f"{line}, whose input was 0 in 1 place"
        )
    said = extent((r.min for r in inputs), (r.max for r in inputs))
    return f"{line}, whose input had{said.replace(' (', ' ').replace(')', '')}" if said else line
