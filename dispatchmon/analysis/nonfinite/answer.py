"""
The answer of `nonfinite`: where non-finite values began, and what is said of it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from dispatchmon.analysis.answer import Answer
from dispatchmon.analysis.nonfinite.places import (
    Deliberate,
    Largest,
    Link,
    Note,
    Origin,
    Place,
    Reached,
    Uninitialised,
    Vanished,
)
from dispatchmon.words.documents import document
from dispatchmon.words.figures import count, counted, number
from dispatchmon.words.names import in_module
from dispatchmon.words.tables import Cells

_ORIGIN = ("event", "rank", "step", "phase", "op", "module", "source", "kind", "what", "inputs_finite")
_NESTED = ("inputs", "outputs", "forward", "cause", "growth", "spread", "count", "total", "follows")
_REACHED = {
    "loss": "the loss",
    "gradient": "the gradient",
    "parameter": "the parameter",
    "buffer": "the buffer",
    "state": "the state of the optimizer",
    "raised": "the operator that raised when it read it",
    "result": "the result of the model",
    "end": "a result that no operator read again",
}
_MOST_ORIGINS, _MOST_LINES, _MOST_CHAIN = 5, 5, 8


@dataclass(frozen=True, repr=False)
class NonFinite(Answer):
    """
    The answer.

    Attributes:
        first: the first origin.
        origins: all of them, in order of events.
        deliberate: constants that did no harm.
        vanished: overflows that became exact zeros, and spoiled a result as such.
        uninitialised: memory that was read before it was written.
        notes: what else is worth knowing.
        largest: the largest finite magnitude.
        tensors: number of values with a floating dtype that the trace shows.
        unmeasured: how many of these have no counts of NaN and Inf.
        ranks: the ranks that were looked at.
        warnings: what must be known before trusting the trace, one sentence each.
    """

    first: Origin | None = None
    origins: tuple[Origin, ...] = ()
    deliberate: tuple[Deliberate, ...] = ()
    vanished: tuple[Vanished, ...] = ()
    uninitialised: tuple[Uninitialised, ...] = ()
    notes: tuple[Note, ...] = ()
    largest: Largest | None = None
    tensors: int = 0
    unmeasured: int = 0
    ranks: tuple[int, ...] = ()
    warnings: tuple[str, ...] = ()

    items = "origins"
    columns = (*_ORIGIN, "message", *_NESTED)

    @property
    def found(self) -> bool:
        """Whether there is anything to alarm about."""
        return bool(self.origins or self.vanished) or any(each.matters for each in self.uninitialised)

    def to_dict(self) -> dict[str, Any]:
        origins = [_document(origin) for origin in self.origins]
        return document(
            {
                "format": 1,
                "first": origins[0] if origins else None,
                "origins": origins,
                "deliberate": [asdict(each) for each in self.deliberate],
                "vanished": [asdict(each) for each in self.vanished],
                "uninitialised": [asdict(each) for each in self.uninitialised],
                "notes": [asdict(each) for each in self.notes],
                "largest": None if self.largest is None else asdict(self.largest),
                "tensors": self.tensors,
                "unmeasured": self.unmeasured,
                "warnings": self.warnings,
            }
        )

    def table(self) -> Cells:
        rows = [[str(o.step), o.phase, o.op, in_module(o.module), o.source or "", o.message] for o in self.origins]
        return Cells(("step", "phase", "operator", "module", "source line", "what happened"), rows, numeric=False)

    def text_table(self) -> Cells:
        return Cells((), [])  # the sentences say it better

    def closing(self) -> list[str]:
        """Say it: the first origin with its chain, then the others in a line each, then what is worth knowing."""
        said: list[str] = []
        ranks = len(self.ranks) > 1
        if self.first is not None:
            elsewhere = [o for o in self.origins if _is_elsewhere(o) and _comes_from(o, self.first)]
            said += [_sentence(self.first.message, self.first, ranks), *_below(self.first, elsewhere)]
        for zeros in self.vanished[:_MOST_LINES]:
            said += ["", _sentence(zeros.message, zeros, ranks), *_went_on_to(zeros.spread)]
        matters = [each for each in self.uninitialised if each.matters]
        for each in matters[:_MOST_LINES]:
            said += ["", _sentence(each.message, each, ranks)]
        if len(matters) > _MOST_LINES:
            said.append(f"  … and {count(len(matters) - _MOST_LINES)} more like it")
        said += self._other_origins(ranks)
        if not self.found:
            said.append(_nothing(self))
        notes = [note.message for note in self.notes]
        if notes:
            said += ["", "Notes:"] + [f"  {_upper(note)}." for note in notes[:_MOST_LINES]]
            if len(notes) > _MOST_LINES:
                said.append(f"  … and {count(len(notes) - _MOST_LINES)} more; --format json has all of them")
        if self.unmeasured and self.unmeasured < self.tensors:
            said += ["", f"{count(self.unmeasured)} of {counted(self.tensors, 'value')} were not measured: "
                     "whether they held NaN or Inf is unknown."]  # fmt: skip
        return said[1:] if said and not said[0] else said

    def _other_origins(self, ranks: bool) -> list[str]:
        """Say the origins after the first in a line each, and of mere consequences how many there are."""
        rest = [
            o for o in self.origins[1:] if o.follows is None or (_is_elsewhere(o) and not _comes_from(o, self.first))
        ]
        follow = [o for o in self.origins[1:] if o.follows is not None and not _is_elsewhere(o)]
        said: list[str] = []
        if rest:
            said += ["", f"{counted(len(rest), 'more origin')}:" if len(rest) > 1 else "Another origin:"]
            said += [f"  {_sentence(origin.message, origin, ranks)}" for origin in rest[:_MOST_ORIGINS]]
            if len(rest) > _MOST_ORIGINS:
                said.append(f"  … and {count(len(rest) - _MOST_ORIGINS)} more; --format json has all of them")
        if follow:
            times = sum(o.count for o in follow)
            said += ["", f"{count(times)} later {'operator' if times == 1 else 'operators'} made NaN or Inf in consequence; "
                     "--format json has all of them."]  # fmt: skip
        return said

    def gist(self) -> str:
        if self.first is not None:
            first = f"{self.first.op} {in_module(self.first.module)}, step {count(self.first.step)}"
            return f"{counted(len(self.origins), 'origin')}, first {first}"
        if self.vanished:
            return f"{counted(len(self.vanished), 'overflow')} became exact zeros"
        if self.found:
            return "memory was read before it was written"
        return f"nothing found in {counted(self.tensors, 'value')}"


def _document(origin: Origin) -> dict[str, Any]:
    whole = asdict(origin)
    return {name: whole[name] for name in NonFinite.columns}


def _sentence(message: str, place: Place, ranks: bool) -> str:
    return _upper(message) + (f" (rank {place.rank})." if ranks else ".")


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _is_elsewhere(origin: Origin) -> bool:
    """Whether a collective brought it from an origin on another rank."""
    return origin.follows is not None and origin.follows.rank != origin.rank


def _comes_from(origin: Origin, first: Origin | None) -> bool:
    """Whether that is this origin."""
    place = origin.follows
    return first is not None and place is not None and (place.rank, place.event) == (first.rank, first.event)


def _below(origin: Origin, elsewhere: list[Origin]) -> list[str]:
    """Return the chain below an origin: what led there, nearest first, and what it reached, on other ranks as well."""
    said = _list("led there by, nearest first:", origin.cause)
    said += _list("grown from, nearest first:", origin.growth)
    said += _went_on_to(origin.spread) or ["  went on to: nothing that was recorded"]
    return said + [f"    rank {each.rank}: {each.message}" for each in elsewhere]


def _went_on_to(spread: dict[str, Reached]) -> list[str]:
    """Return what was reached, a line each."""
    if not spread:
        return []
    return ["  went on to:", *(f"    {_reached(what, where)}" for what, where in spread.items())]


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
    return (
        f"{_REACHED[what]}{name}: {where.op} {in_module(where.module)}{line}, step {count(where.step)}, {where.phase}"
    )


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
