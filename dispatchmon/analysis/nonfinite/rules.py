"""
The rules for one result: which of its non-finite elements were born here, which turned from Inf to NaN, which passed on.

An element is *born* if no non-finite element of any input can reach it; it *turned* if it is NaN, no NaN can reach it, and
an Inf can. Everything else is passed on, and descends from what reached it. Where the elements cannot be told apart (a
value too large for a map, an operator that mixes all of its input) the counts decide: more non-finite elements than the
inputs' can explain were born here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dispatchmon.analysis.nonfinite.behaviour import ANYTHING, Argument, Behaviour, can_create, of_argument
from dispatchmon.analysis.nonfinite.memory import Labels
from dispatchmon.analysis.nonfinite.reach import MOST_ELEMENTS, reach
from dispatchmon.analysis.nonfinite.rows import Event, Row
from dispatchmon.memory.cells import Mask, as_cells, elements, unpacked

Maps = dict[str, Mask]  # "n", "p", "m" -> the elements that are NaN, +Inf, -Inf, or may be


@dataclass
class Seen:
    """A value with non-finite elements: where they are, as far as that is known, and what they descend from."""

    row: Row
    maps: Maps
    known: bool  # the maps are those of the trace, not a guess
    labels: Labels = field(default_factory=dict)

    @property
    def nonfinite(self) -> Mask:
        found: Mask = self.maps["n"] | self.maps["p"] | self.maps["m"]
        return found


def seen(row: Row) -> Seen:
    """What is known of where a value's non-finite elements lie."""
    shape, counts = row.shape or (), row.counts
    if row.numel is None or row.stride is None or row.numel > MOST_ELEMENTS:
        return Seen(row, {k: np.full((), n > 0) for k, n in counts.items()}, False)
    if row.cells:
        return Seen(row, dict(zip("npm", unpacked(row.cells, shape, row.stride), strict=True)), True)
    full = {k: np.broadcast_to(np.array(n > 0), shape) for k, n in counts.items()}
    return Seen(row, full, max(counts.values()) == row.numel)


@dataclass
class Judged:
    """What the rules say of one result."""

    born_nan: bool = False
    born_inf: bool = False
    turned: bool = False
    labels: Labels = field(default_factory=dict)  # of what passed on
    born: Mask | None = None  # the elements, where they can be told
    turns: Mask | None = None
    used_up: set[int] = field(default_factory=set)  # findings whose Inf turned


class Reaching:
    """Reach of every input's elements in one result, worked out once."""

    def __init__(self, event: Event, b: Behaviour | None, out: Row, coarse: bool) -> None:
        self.event, self.b, self.out, self.coarse = event, b, out, coarse
        self.shape: tuple[int, ...] = () if coarse else out.shape or ()
        self.everything = False  # something reaches no matter where

    def of(self, row: Row, mask: Mask) -> Mask:
        """The elements of the result that a mask's elements can reach."""
        if not mask.any():
            return np.zeros(self.shape, bool)
        found = None if self.coarse or mask.shape != row.shape else reach(self.event, self.b, row, mask, self.out)
        if found is None:
            self.everything = True
            return np.ones(self.shape, bool)
        return found


def judge(event: Event, b: Behaviour | None, result: Seen, inputs: list[Seen]) -> Judged:
    """Apply the rules to one non-finite result and the non-finite inputs it may depend on."""
    out, maps = result.row, result.maps
    coarse = maps["n"].shape != (out.shape or ()) or out.stride is None
    reaching = Reaching(event, b, out, coarse)
    nothing = np.zeros(reaching.shape, bool)
    nan_by_nan, nan_by_inf, inf_by_any, by_all = nothing, nothing, nothing, nothing
    for each in inputs:
        argument = of_argument(b, each.row.arg)
        for letter, mask in each.maps.items():
            becomes = argument.becomes(letter)
            if not mask.any():
                continue
            reached = reaching.of(each.row, mask)
            by_all = by_all | reached
            if becomes == "f":
                continue
            if letter == "n":
                nan_by_nan = nan_by_nan | reached
            else:
                nan_by_inf = nan_by_inf | reached
            if "p" in becomes or "m" in becomes:
                inf_by_any = inf_by_any | reached
    found = Judged()
    creates = can_create(b, out, event.inputs)
    nan, inf = maps["n"], maps["p"] | maps["m"]
    by_any = nan_by_nan | nan_by_inf

    def cells(mask: Mask) -> Mask:  # the maps tell elements apart only as finely as the result's cells do
        return mask.reshape(-1) if coarse else as_cells(mask, out.stride or ())

    def widen(mask: Mask) -> Mask:
        return np.full((), mask.any()) if coarse else elements(mask, out.shape or (), out.stride or ())

    known = result.known or not by_any.any()
    born_nan = cells(nan) & ~cells(by_any)
    turned = cells(nan) & ~cells(nan_by_nan) & cells(nan_by_inf)
    # min(+Inf, +Inf) is Inf though each alone is not seen again: what cannot be made here was passed on
    explained = inf_by_any if set(creates) & {"p", "m"} or event.constants else by_all
    born_inf = cells(inf) & ~cells(explained)
    if not known:
        born_nan, born_inf, turned = (np.zeros_like(m) for m in (born_nan, born_inf, turned))
    if (not result.known or reaching.everything) and by_any.any():
        by_counts(found, event, b, result, inputs, creates)
    found.born_nan |= bool(born_nan.any())
    found.born_inf |= bool(born_inf.any())
    found.turned |= bool(turned.any()) or (not known and not nan_by_nan.any() and bool(nan.any()))
    found.born = widen(born_nan | born_inf)
    turned_all = known and bool(turned.any())
    found.turns = widen(turned) if turned_all else result.nonfinite if found.turned else widen(turned)
    for each in inputs:
        pass_on(found, reaching, result, each, of_argument(b, each.row.arg))
    if not (found.labels or found.born_nan or found.born_inf or found.turned):
        for each in inputs:
            pass_on(found, reaching, result, each, ANYTHING)
    return found


def by_counts(found: Judged, event: Event, b: Behaviour | None, result: Seen, inputs: list[Seen], creates: str) -> None:
    """Whether there are more non-finite elements than those of the inputs explain."""
    if b is None or not all(a.single for a in b.arguments.values()):
        return
    out = result.row
    nan = inf = turning = 0
    for each in inputs:
        argument, counts = of_argument(b, each.row.arg), each.row.counts
        factor = max(1, (out.numel or 0) // max(1, each.row.numel or 0))
        nan += counts["n"] * factor
        for letter in "pm":
            inf += counts[letter] * factor if set(argument.becomes(letter)) & {"p", "m"} else 0
            turning += counts[letter] * factor if argument.becomes(letter) != "f" else 0
    got = out.counts
    if got["n"] > nan:
        if got["n"] > nan + turning and "n" in creates:
            found.born_nan = True
        elif turning:
            found.turned = True
    if got["p"] + got["m"] > inf and set(creates) & {"p", "m"}:
        found.born_inf = True


def pass_on(found: Judged, reaching: Reaching, result: Seen, each: Seen, argument: Argument) -> None:
    """Give the elements of the result that an input's reach the input's findings."""
    maps = result.maps
    for letter, mask in each.maps.items():
        becomes = argument.becomes(letter)
        if becomes == "f" or not mask.any():
            continue
        allowed = maps["n"].copy()
        if "p" in becomes or letter == "p":
            allowed |= maps["p"]
        if "m" in becomes or letter == "m":
            allowed |= maps["m"]
        for root, of_root in each.labels.items():
            part = of_root & mask
            if not part.any():
                continue
            reached = reaching.of(each.row, part) & allowed
            if letter != "n" and found.turns is not None and (reached & found.turns).any():
                found.used_up.add(root)
                reached = reached & ~found.turns
            if reached.any():
                found.labels[root] = found.labels[root] | reached if root in found.labels else reached
