"""
What operators do with NaN, Inf and extreme values: a table learned from torch's operator database (`make behaviour`).

An operator that the table lacks is looked up under its out-of-place, single-tensor and default forms; if that fails too it
is taken to read every argument, to be able to make anything of anything, and to reach every element from every element.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from dispatchmon.analysis.nonfinite.rows import FINITE_MAX, Row


@dataclass(frozen=True)
class Argument:
    """
    What becomes of one argument's elements.

    `nan`, `posinf` and `neginf` say which of NaN ("n"), +Inf ("p"), -Inf ("m") and finite ("f") can come of each.
    """

    nan: str
    posinf: str
    neginf: str
    single: bool  # one element reaches at most as many elements of the result as broadcasting would make of it
    same: bool  # and they stand where broadcasting puts them
    ignores: bool  # some elements may have no influence at all
    kept: bool  # what is not overwritten is only left where it was

    def becomes(self, letter: str) -> str:
        return {"n": self.nan, "p": self.posinf, "m": self.neginf}[letter]


@dataclass(frozen=True)
class Behaviour:
    """What one operator does."""

    creates: str  # which of "n", "p", "m" it can make of finite values
    view: bool  # its result is a view of an argument
    moves: bool  # it only moves values
    values: frozenset[str]  # arguments that were seen with floating values
    arguments: dict[str, Argument]  # of these, the ones whose values it reads


ANYTHING = Argument("nmp", "nmpf", "nmpf", False, False, True, False)


@cache
def table() -> tuple[str, dict[str, Any]]:
    """The torch version it was learned with, and the table."""
    data = json.loads(files("dispatchmon.analysis").joinpath("data", "operator_behaviour.json").read_text())
    return data["torch"], data["operators"]


@cache
def behaviour(op: str) -> Behaviour | None:
    """What an operator does; None if that is not known."""
    known = table()[1]
    packet, _, overload = op.rpartition(".")
    base = packet.replace("_foreach_", "").replace("_fused_", "").rstrip("_")
    names = (
        op,
        f"{packet}.default",
        f"{base}.{overload}",
        f"{base}.Tensor",
        f"{base}.Scalar",
        f"{base}.default",
        f"{base}_.{overload}",
    )
    found = next((known[name] for name in names if name in known), None)
    if found is None:
        return None
    arguments = {
        name: Argument(
            a["n"], a["p"], a["m"], "one" in a["is"], "same" in a["is"], "ignores" in a["is"], "kept" in a["is"]
        )
        for name, a in found["args"].items()
    }
    return Behaviour(
        found["creates"], "view" in found["is"], "moves" in found["is"], frozenset(found["values"]), arguments
    )


def plain(arg: str | None) -> str:
    """`tensors` of `tensors[2]`."""
    return (arg or "").partition("[")[0]


def element(arg: str | None) -> str:
    """`2]` of `tensors[2]`."""
    return (arg or "").partition("[")[2]


# Arguments of collectives and of FSDP's copies that are written whole, whatever they held.
FILLED = ("output", "outputs", "output_tensor", "output_tensors", "output_lists", "all_gather_output")


def of_argument(b: Behaviour | None, arg: str | None) -> Argument:
    """What becomes of an argument."""
    return ANYTHING if b is None else b.arguments.get(plain(arg), ANYTHING)


def reads(b: Behaviour | None, row: Row) -> bool:
    """Whether the operator looks at the old value of this argument."""
    op, arg = row.op, plain(row.arg)
    if row.written and arg in FILLED and not op.startswith("aten."):
        return False
    if arg == "out" or "empty" in op or op.endswith("_like.default") or ".new_" in op:
        return False
    return b is None or arg not in b.values or arg in b.arguments


def can_create(b: Behaviour | None, out: Row, inputs: list[Row]) -> str:
    """Which of NaN, +Inf, -Inf the operator can make of finite values."""
    if b is None:
        return "nmp"
    largest = FINITE_MAX.get(out.dtype or "", float("inf"))
    if not b.creates and any(FINITE_MAX.get(i.dtype or "", 0.0) > largest for i in inputs):
        return "mp"  # a cast to a smaller range overflows
    return b.creates
