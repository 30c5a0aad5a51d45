"""
The sentence that says where a NaN or Inf was born: the same while running and afterwards, for a tired reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dispatchmon.words.figures import figure

_NAMES = (("n", "NaN"), ("p", "+Inf"), ("m", "-Inf"))
_USUAL = ("float32", "float64", None)


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
    inputs: Iterable[Mapping[str, Any]],
    source: str | None,
    step: int,
    phase: str,
) -> str:
    """`aten.log.default` in `head` made 3 -Inf of 24 elements from finite inputs (min 0, max 2) at …"""
    inputs = list(inputs)
    spoiled = {k: sum(i["counts"][k] for i in inputs) for k in "npm"}
    of = f" of {numel} elements" if numel is not None and numel > 1 else ""
    unusual = f" in {dtype}" if dtype not in _USUAL else ""
    text = f"{operator_at(op, module)} made {amount(counts)}{of}{unusual}"
    measured = [i for i in inputs if i["measured"]]
    if inputs:
        if any(spoiled.values()):
            text += f" from inputs that held {amount(spoiled)}"
        elif len(measured) == len(inputs):
            text += " from finite inputs"
        text += extent((i["min"] for i in measured), (i["max"] for i in measured))
    return f"{text} {when(source, step, phase)}"
