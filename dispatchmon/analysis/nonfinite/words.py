"""
Findings in words, and as the dataclasses of the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Literal, cast

from dispatchmon.analysis.nonfinite.behaviour import behaviour, element, reads
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
    Vanished,
)
from dispatchmon.analysis.nonfinite.rows import Event, Row
from dispatchmon.analysis.nonfinite.search import Search
from dispatchmon.analysis.nonfinite.vanish import Vanishing
from dispatchmon.words.nonfinite import Went, amount, at, extent, kinds, made, operator_at, places, when

_KINDS: dict[str, Kind] = {ORIGIN: "made", TURNED: "turned", EXTERNAL: "external", DELIBERATE: "deliberate"}
MOST_LINKS = 12  # of a chain
_AT_ZERO = ("sqrt", "rsqrt", "norm", "pow", "div", "log", "reciprocal", "std", "cdist", "atan2")


class Teller:
    """Says what the search of one rank found; `rows_of` looks up events by number."""

    def __init__(
        self, search: Search, rank: int, rows_of: Callable[[int], Event | None], results: Callable[[], frozenset[int]]
    ) -> None:
        self.search, self.rank, self.rows_of = search, rank, rows_of
        self.results = cache(results)  # storages of what the model returned

    def event(self, number: int) -> Event | None:
        return self.search.events.get(number) or self.rows_of(number)

    def place(self, row: Row) -> Place:
        return Place(row.event, self.rank, row.step, row.phase, row.op, row.module, row.source)

    def parts(self, row: Row) -> tuple[int, int, int, str, str, str | None, str | None]:
        """What every answer begins with."""
        return row.event, self.rank, row.step, row.phase, row.op, row.module, row.source

    # ------------------------------------------------------------------------------------------------- origins
    def origin(self, alike: list[Finding], growth: tuple[Link, ...] = (), follows: Finding | None = None) -> Origin:
        """Findings that matter and say the same thing: the first, and how many."""
        found = alike[0]
        row = found.row
        event = self.event(row.event) or Event([row])
        forward = self.event(row.forward_event) if row.forward_event is not None and row.phase == "backward" else None
        return Origin(
            *self.parts(found.collective or row),
            kind=_KINDS[found.kind],
            what=cast(Literal["nan", "inf"], found.what),
            inputs_finite=found.inputs_finite and found.kind != EXTERNAL,
            inputs=tuple(value(each) for each in event.inputs),
            outputs=tuple(value(each) for each in event.outputs),
            forward=None if forward is None else self.place(forward.first),
            cause=self.chain(found),
            growth=growth,
            spread=self.spread(alike),
            message=self.sentence(found, event, forward) + again(alike),
            count=len(alike),
            total=total(alike),
            follows=None if follows is None else self.place(follows.row),
        )

    def brought(self, found: Finding) -> str:
        """What another rank sent, in one sentence."""
        row, by = found.row, found.collective or found.row
        return f"{operator_at(by.op, by.module)} brought {amount(row.counts)} {when(by.source, by.step, by.phase)}"

    def sentence(self, found: Finding, event: Event, forward: Event | None) -> str:
        """What happened, in one sentence."""
        row = found.row
        if found.collective is not None:
            return self.brought(found)
        if found.kind == EXTERNAL:
            named = f"`{row.name}`" if row.name else f"`{row.arg}`"
            return (
                f"{amount(row.counts)} of {row.numel} elements were already in {named} when "
                f"{operator_at(row.op, row.module)} first read it {when(row.source, row.step, row.phase)}"
            )
        if found.kind == DELIBERATE and found.argument is None:
            return (
                f"{operator_at(row.op, row.module)} filled in {amount(row.counts)} on purpose "
                f"{when(row.source, row.step, row.phase)}"
            )
        b = behaviour(row.op)
        used = [each for each in event.inputs if each.is_float and reads(b, each) and belongs(each, row)]
        text = made(
            op=row.op, module=row.module, counts=row.counts, numel=row.numel, dtype=row.dtype, source=row.source,
            step=row.step, phase=row.phase, arguments=event.arguments, inputs=[
                Went(i.arg, i.counts, i.nan is not None or i.inf is not None, i.min, i.max, i.zero, i.numel)
                for i in used])  # fmt: skip
        if found.mask and found.kind == ORIGIN:
            text += "; it is the logarithm of zeros and ones, as masks are made"
        if found.argument is not None:
            text += f"; {argument(found, event)}"
        if found.kind == TURNED and found.causes:
            text += f"; {self.because(found)}"
        if forward is not None:
            text += (
                f"; it is the gradient of {operator_at(forward.first.op, forward.first.module)}{at_forward(forward)}"
            )
        return text

    def because(self, found: Finding) -> str:
        """Where the Inf that turned to NaN began."""
        first = self.root(found)
        row = first.collective or first.row
        did = "made by"
        if first.kind == EXTERNAL and first.mask:
            did = "written down in a tensor that was first read by"
        elif first.collective is not None:
            did = "brought from another rank by"
        elif first.kind == EXTERNAL:
            did = "already there when first read by"
        elif first.kind == DELIBERATE and first.argument is None:
            did = "filled in on purpose by"
        what = kinds(first.counts or first.row.counts)
        verb = "were" if " and " in what else "was"
        line = f" {at(row.source)}" if row.source else ""
        return f"the {what} {verb} {did} {operator_at(row.op, row.module)}{line}"

    def root(self, found: Finding) -> Finding:
        """Where the first of what it was made of began."""
        ancestors = self.search.ancestors(found)
        return min((f for f in ancestors if f.kind != TURNED), key=lambda f: f.event, default=found)

    def chain(self, found: Finding) -> tuple[Link, ...]:
        """What led here, nearest first; of a long chain the nearest events and where it began."""
        numbers = self.search.chain(found)
        if len(numbers) > MOST_LINKS:
            numbers = [*numbers[: MOST_LINKS - 1], numbers[-1]]
        began = {f.event: f for f in self.search.ancestors(found)}
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
        filled = root is not None and root.kind == DELIBERATE and root.argument is None
        verb = "passed on" if root is None else "filled in on purpose" if filled else "made"
        return f"{what} {verb} {amount(row.counts) or 'it'} {at}"

    def spread(self, alike: list[Finding]) -> dict[str, Reached]:
        """Where they went, also through what they turned into."""
        reached: dict[str, tuple[int, str | None]] = {}
        seen: set[int] = set()
        todo = [found.number for found in alike]
        while todo:
            each = self.search.findings[todo.pop()]
            if each.number in seen:
                continue
            seen.add(each.number)
            todo += each.became
            for what, where in each.spread.items():
                reached[what] = min(reached.get(what, where), where, key=lambda w: w[0])
        answer = {}
        for what in ("loss", "gradient", "parameter", "buffer", "state", "raised", "end"):
            if what in reached and (event := self.event(reached[what][0])) is not None:
                answer[what] = Reached(*self.parts(event.first), name=reached[what][1])
        end = answer.pop("end", None)
        if end is not None and not answer:
            # what nobody reads any more after backward is the gradient of something
            answer["gradient" if end.phase == "backward" else self.kind_of_end(reached["end"][0])] = end
        return answer

    def kind_of_end(self, number: int) -> str:
        """Whether what no operator read again is the result of the model."""
        event = self.event(number)
        return "end" if event is None else self.kind_of_event(event)

    def kind_of_event(self, event: Event) -> str:
        """The same, of an event."""
        return "result" if any(row.storage in self.results() for row in event.outputs) else "end"

    # ------------------------------------------------------------------------------------------------- the others
    def deliberate(self, found: Finding) -> Deliberate:
        row = found.row
        return Deliberate(
            *self.parts(row),
            what=cast(Literal["nan", "inf"], found.what),
            message=self.sentence(found, self.event(row.event) or Event([row]), None),
        )

    def vanished(self, each: Vanishing) -> Vanished:
        """An overflow that became zeros, and a result with them."""
        found, zeroed, result = each.found, each.zeroed.first, each.result.first
        row = found.row
        out = next(row for row in each.result.outputs if row.is_float)
        by = "" if each.zeroed is each.result or zeroed.event == result.event else (
            f", and {operator_at(result.op, result.module)} multiplied by them "
            f"{when(result.source, result.step, result.phase)}")  # fmt: skip
        often = f"; {each.count} times" if each.count > 1 else ""
        text = (
            f"{self.sentence(found, self.event(row.event) or Event([row]), None)}; "
            f"{operator_at(zeroed.op, zeroed.module)} made exact zeros of it "
            f"{when(zeroed.source, zeroed.step, zeroed.phase)}{by}: {each.zeros} of {out.numel} elements of the result "
            f"are 0 and should not be{often}"
        )
        spread = {
            self.kind_of_event(event) if what == "end" else what: Reached(*self.parts(event.first), name=name)
            for what, (event, name) in each.spread.items()
        }
        return Vanished(
            *self.parts(row),
            zeroed=self.place(zeroed),
            result=self.place(result),
            zeros=each.zeros,
            spread=spread,
            message=text,
            count=each.count,
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
        elif found.asked:
            text += "; the program asked whether it is finite, and went on training without it"
        return Note("cleared", text, self.place(found.row))


def belongs(row: Row, out: Row) -> bool:
    """Whether an input goes into this result: of an operator on lists, what has its place."""
    on_lists = "_foreach_" in out.op or "_fused_" in out.op
    return not on_lists or not element(out.arg) or element(row.arg) in ("", element(out.arg))


def total(alike: list[Finding]) -> dict[str, int]:
    """The NaN and Inf of the results that they began in."""
    return {"nan": sum(f.row.nan or 0 for f in alike), "inf": sum(f.row.inf or 0 for f in alike)}


def again(alike: list[Finding]) -> str:
    """`; 11 more times to step 3, 24 NaN and 8 Inf in all`."""
    more = len(alike) - 1
    if not more:
        return ""
    first, last = alike[0].row.step, max(f.row.step for f in alike)
    what = " and ".join(f"{n} {name}" for n, name in zip(total(alike).values(), ("NaN", "Inf"), strict=True) if n)
    times = "once more" if more == 1 else f"{more} more times"
    return f"; the same {times}{f' up to step {last}' if last > first else ''}, {what} in all"


def argument(found: Finding, event: Event) -> str:
    """That a number which the operator was given was not finite."""
    name, given = found.argument, event.arguments.get(found.argument or "")
    said = f"its argument `{name}` "
    if isinstance(given, list):
        said += "held " + " and ".join(word for word in ("NaN", "Inf") if any(word.lower() in str(x) for x in given))
    else:
        said += "was " + {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}.get(str(given), str(given))
    if event.first.phase == "optimizer":
        said += ", which an optimizer makes of its learning rate and the like"
    return said


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
        return f"{line}, whose result was 0 {places(flat)}"
    if zeros and any(word in name for word in _AT_ZERO):
        return f"{line}, whose input was 0 {places(zeros)}"
    said = extent((r.min for r in inputs), (r.max for r in inputs))
    return f"{line}, whose input had{said.replace(' (', ' ').replace(')', '')}" if said else line
