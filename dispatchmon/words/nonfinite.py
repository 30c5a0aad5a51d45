"""
The sentence that says where a NaN or Inf was born: the same while running and afterwards, for a tired reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from dispatchmon.words.figures import figure

_NAMES = (("n", "NaN"), ("p", "+Inf"), ("m", "-Inf"))
_USUAL = ("float32", "float64", None)
_DIVISIONS = ("div", "true_divide", "divide")


class Went(NamedTuple):
    """What is said of a value that went into an operator."""

    arg: str | None
    counts: Mapping[str, int]  # of NaN, +Inf and -Inf
    measured: bool
    min: float | None
    max: float | None
    zero: int | None
    numel: int | None


def amount(counts: Mapping[str, int]) -> str:
    """`2 NaN and 1 -Inf`."""
    return " and ".join(f"{counts[k]} {name}" for k, name in _NAMES if counts[k])


def kinds(counts: Mapping[str, int]) -> str:
    """`NaN and -Inf`."""
    return " and ".join(name for k, name in _NAMES if counts[k])


def operator_at(op: str, module: str | None) -> str:
    """The operator and its module."""
    return f"`{op}`" + (f" in `{module}`" if module else " in the model itself" if module == "" else "")


def when(source: str | None, step: int, phase: str) -> str:
    """The line, the step and the phase."""
    return (f"{at(source)}, " if source else "") + f"step {step}, {phase}"


def at(source: str) -> str:
    """`at train.py:41`, of `train.py:41 in forward`."""
    return "at " + source.partition(" in ")[0]


def extent(lows: Iterable[float | None], highs: Iterable[float | None]) -> str:
    """Smallest and largest finite element of several values."""
    low = [x for x in lows if x is not None]
    high = [x for x in highs if x is not None]
    if not low or not high:
        return ""
    return f" (min {figure(min(low))}, max {figure(max(high))})"


def made(
    *,
    op: str,
    module: str | None,
    counts: Mapping[str, int],
    numel: int | None,
    dtype: str | None,
    inputs: Iterable[Went],
    arguments: Mapping[str, Any],
    source: str | None,
    step: int,
    phase: str,
) -> str:
    """`aten.log.default` in `head` made 3 -Inf of 24 elements from finite inputs (min 0, max 2) at …"""
    inputs = list(inputs)
    spoiled = {k: sum(i.counts[k] for i in inputs) for k in "npm"}
    of = f" of {numel} elements" if numel is not None and numel > 1 else ""
    unusual = f" in {dtype}" if dtype not in _USUAL else ""
    text = f"{operator_at(op, module)} made {amount(counts)}{of}{unusual}"
    measured = [i for i in inputs if i.measured]
    if inputs:
        finite = not any(spoiled.values())
        if not finite:
            text += f" from inputs that held {amount(spoiled)}"
        elif len(measured) == len(inputs):
            text += " from finite inputs"
        text += divided(op, counts, numel, inputs, arguments, finite) or extent(
            (i.min for i in measured), (i.max for i in measured)
        )
    return f"{text} {when(source, step, phase)}"


def divided(
    op: str,
    counts: Mapping[str, int],
    numel: int | None,
    inputs: list[Went],
    arguments: Mapping[str, Any],
    finite: bool,
) -> str:
    """
    Of a division, what was divided by what: `, 0 divided by 0 in 8 places (numerator min 0, max 2; divisor 0)`.

    Where everything that went in is finite, each NaN is 0 divided by 0. An Inf may be an overflow as well: it is a division
    by 0 if the divisor has as many zeros.
    """
    if "." not in op or op.split(".")[1].replace("_foreach_", "").rstrip("_") not in _DIVISIONS:
        return ""
    numerators = [i for i in inputs if (i.arg or "").startswith("self")]
    divisors = [i for i in inputs if (i.arg or "").startswith("other")]
    if len(numerators) != 1 or len(divisors) > 1:  # lists, of which it is not known which is meant
        return ""
    numerator, divisor = numerators[0], divisors[0] if divisors else None
    scalar = arguments.get("other", arguments.get("scalar")) if divisor is None else None
    if divisor is None and not isinstance(scalar, int | float):
        return ""
    infinite, undefined = counts["p"] + counts["m"], counts["n"]
    by_zero = scalar == 0
    if divisor is not None and divisor.zero and divisor.numel:
        by_zero = divisor.zero * ((numel or 0) // divisor.numel) == infinite + undefined
    said = []
    if finite and undefined:
        said.append(f"0 divided by 0 {places(undefined)}")
    if finite and infinite and by_zero:
        said.append(f"divided by 0 {places(infinite)}" if said else f"by dividing by 0 {places(infinite)}")
    elif infinite and scalar == 0:
        said.append("by dividing by 0")
    numbers = [f"numerator{spoken(numerator)}", f"divisor {scalar}" if divisor is None else f"divisor{spoken(divisor)}"]
    return (", " if said else "") + " and ".join(said) + f" ({'; '.join(numbers)})"


def places(n: int) -> str:
    """`in 1 place`."""
    return "in 1 place" if n == 1 else f"in {n} places"


def spoken(value: Went) -> str:
    """` min 0, max 2`, or what else is known."""
    if value.min is None or value.max is None:
        return f" {amount(value.counts)}" if any(value.counts.values()) else " unknown"
    return f" min {figure(value.min)}, max {figure(value.max)}"
