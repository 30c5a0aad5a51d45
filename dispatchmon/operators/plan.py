"""What the handler needs to know of one operator overload."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dispatchmon.operators.arguments import Arguments

# Why an operator needs more than a look before and a look after (`RecordingMode.unusual`); 0 if it does not.
PLAIN, HIGHER_ORDER, FLAGGED, UNCOUNTED, MAY_LIE, COMPOSITE, NO_OPERATOR, WAIT, KEYED, FACTORY, LEAVES_SCRATCH = range(11)


@dataclass(frozen=True, slots=True)
class Plan:
    """What the handler needs to know of one operator overload."""

    operator: int  # number in the table of operators
    by_position: tuple[Any, ...]  # of each positional argument: number; Elements of a list; None if it is no tensor
    by_name: dict[str, Any]  # the same, by name
    writes: tuple[tuple[int, str, Any], ...]  # position, name, argument number of the state after
    outputs: tuple[Any, ...]  # argument number of each result that is not a written argument
    arguments: Arguments  # what turns the other arguments into JSON
    others: bool  # whether the schema has any
    special: int  # PLAIN, or why it is not
    moves_values: bool  # its writes change memory, not only what a tensor shows
    measured: bool  # `ops` asks for its statistics
    unready: int  # why its results mean nothing yet when it returns (UNREADY, IN_FLIGHT); 0 if they do
    name: str
    effects: int  # what it does to memory beyond its writes, see effects.py
    notable: bool  # the audit looks at it: it makes a container, detaches or compares


class Elements:
    """Argument numbers of the tensors in a list, `tensors[2]`; lists of lists as `tensors[2][0]`."""

    __slots__ = ("make", "name", "numbers")

    def __init__(self, make: Callable[[str], int], name: str) -> None:
        self.make, self.name = make, name
        self.numbers: dict[int, Any] = {}

    def at(self, i: int) -> int:
        number = self.numbers.get(i)
        if number is None:
            number = self.numbers[i] = self.make(f"{self.name}[{i}]")
        return number

    def inside(self, i: int) -> Elements:
        inner = self.numbers.get(~i)
        if inner is None:
            inner = self.numbers[~i] = Elements(self.make, f"{self.name}[{i}]")
        return inner
