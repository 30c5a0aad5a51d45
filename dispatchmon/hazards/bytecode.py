"""
The instructions of a code object, in one form for every Python.

Pythons pack the same program differently: 3.11 counts the arguments of a call twice, 3.12 puts the name of a method into
LOAD_ATTR and a comprehension into its function, 3.13 loads and stores two names at once, 3.14 borrows what it loads. Here each
step does one thing, under the name that 3.11 gives it.
"""

from __future__ import annotations

import dis
import sys
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any, NamedTuple

_FILLERS = frozenset(("CACHE", "PRECALL", "NOP", "EXTENDED_ARG", "NOT_TAKEN"))
_FAST = ("LOAD_FAST", "STORE_FAST", "DELETE_FAST")
_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))
HIDE, BACK = "HIDE", "BACK"  # a name is put aside while a comprehension uses it for another value, and put back


class Step(NamedTuple):
    """One thing that an instruction does."""

    offset: int  # of the instruction; two steps of one instruction share it
    op: str
    name: Any  # what it loads, stores or calls for
    arg: int  # of a call, how many arguments
    grows: int  # by how much the stack does
    target: int | None  # of a jump, the offset
    line: int  # 0 if it has none


@lru_cache(maxsize=256)
def steps_of(code: CodeType) -> tuple[Step, ...]:
    """What a code object does, in the order of its instructions."""
    hidden: defaultdict[str, list[Any]] = defaultdict(list)  # name -> comprehensions around, the innermost last
    over: set[tuple[str, Any]] = set()
    found = []
    for i in dis.get_instructions(code):
        if i.opname in _FILLERS:
            continue
        line = (i.positions.lineno if i.positions is not None else None) or 0
        for op, name in names_in(i):
            grows = 1 if op == "LOAD_FAST" else -1 if op == "STORE_FAST" else growth(i)
            if i.opname == "LOAD_FAST_AND_CLEAR":
                hidden[name].append(i.positions)
                op = HIDE
            elif op == "STORE_FAST" and (name, i.positions) in over:  # on the way out by an exception
                op = BACK
            elif op in _FAST and hidden[name]:
                if op == "STORE_FAST" and not within(i.positions, hidden[name][-1]):
                    over.add((name, hidden[name].pop()))
                    op = BACK
                else:
                    name = f"{name} of a comprehension"
            found.append(Step(i.offset, op, name, i.arg or 0, grows, i.argval if i.opcode in _JUMPS else None, line))
    return tuple(found)


def names_in(instruction: dis.Instruction) -> Iterator[tuple[str, Any]]:
    """The operations of an instruction, as 3.11 calls them, with what they are about."""
    op, about = instruction.opname, instruction.argval
    if op.startswith(("LOAD_FAST", "STORE_FAST")):
        parts = [part for part in _FAST for _ in range(op.count(part))]
        if op == "STORE_FAST_LOAD_FAST":
            parts.reverse()
        yield from zip(parts, about if isinstance(about, tuple) else (about,), strict=True)
    elif op == "LOAD_ATTR" and sys.version_info >= (3, 12) and (instruction.arg or 0) & 1:
        yield "LOAD_METHOD", about
    else:
        yield op, about


def growth(instruction: dis.Instruction) -> int:
    """By how much an instruction that does not jump lets the stack grow."""
    grows = dis.stack_effect(instruction.opcode, instruction.arg, jump=False)
    if instruction.opname == "CALL" and sys.version_info < (3, 12):
        grows -= instruction.arg or 0  # counted with PRECALL, which is left out
    return grows


def within(place: Any, outer: Any) -> bool:
    """Whether a place in the source lies within another, and is not all of it; where there are no columns, it may."""
    if None in (*place, *outer):
        return True
    start, end = (place.lineno, place.col_offset), (place.end_lineno, place.end_col_offset)
    return (
        place != outer and (outer.lineno, outer.col_offset) <= start and end <= (outer.end_lineno, outer.end_col_offset)
    )


def at(steps: Sequence[Step], offset: int) -> int:
    """Index of the (last) step of the instruction that runs at an offset: a frame may stand in what is cached after it."""
    return bisect_right(steps, offset, key=lambda step: step.offset) - 1


def reached_from(steps: Sequence[Step], offset: int) -> int:
    """Index of the first step that a jump to this offset reaches."""
    return bisect_left(steps, offset, key=lambda step: step.offset)
