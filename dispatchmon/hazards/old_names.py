"""
Whether a function goes on using a name after it gave that name's value to a call that wrote over it and handed it back.

`y = self.relu(x); return self.conv(y) + x` and `x = self.relu(x); return self.conv(x) + x` send the same operators over the
same memory; only the names differ. They stand in the code object: no frame's local variables are read.
"""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Sequence
from functools import lru_cache
from types import CodeType, FrameType

import torch

Loads = tuple[tuple[int, int], ...]  # (offset, line) of instructions
# Attributes that say nothing of a tensor's content.
ABOUT = frozenset("shape size dim ndim dtype device numel requires_grad is_cuda stride".split())
_FILLERS = ("CACHE", "PRECALL", "NOP", "EXTENDED_ARG")
_JUMPS = ("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_ABSOLUTE")
_BOUNDARIES = ("STORE_", "POP_TOP", "RETURN", "RESUME", "JUMP", "POP_JUMP", "FOR_ITER", "RAISE")
_TURNS = ("SWAP", "COPY", "ROT_", "DUP_", "UNPACK", "EXTENDED", "SEND", "YIELD")
_KNOWN: dict[CodeType, bool] = {}


def instructions_of(code: CodeType) -> list[dis.Instruction]:
    """The instructions that do something."""
    return [i for i in dis.get_instructions(code) if i.opname not in _FILLERS]


@lru_cache(maxsize=4096)
def later_loads(code: CodeType, call: int) -> Loads:
    """
    Offsets, with lines, at which the only argument of the call at that offset is loaded again under its old name.

    Empty if the argument is no plain name, if the result is thrown away (`self.relu(x)` alone: meant to write) or goes
    to the same name. Both ways of a branch are followed, up to the first rebinding; a loop is not followed back.
    """
    instructions = instructions_of(code)
    at = next((k for k, i in enumerate(instructions) if i.offset == call), None)
    if not at or at + 1 >= len(instructions) or instructions[at].arg != 1:
        return ()
    before, after = instructions[at - 1], instructions[at + 1]
    if not before.opname.startswith("LOAD_FAST") or not isinstance(before.argval, str) or after.opname == "POP_TOP":
        return ()
    loads = set(held(instructions, at, names_of(before.argval, instructions[:at])))
    offsets = {i.offset: k for k, i in enumerate(instructions)}
    pending = [(at + 1, name) for name in names_of(before.argval, instructions[:at])]
    seen: set[tuple[int, str]] = set()
    while pending:
        k, name = pending.pop()
        if (k, name) in seen or k >= len(instructions):
            continue
        seen.add((k, name))
        i = instructions[k]
        names = i.argval if isinstance(i.argval, tuple) else (i.argval,)
        if (i.opname.startswith("STORE_FAST") and names[0] == name) or (i.opname == "DELETE_FAST" and i.argval == name):
            continue  # another value from here on
        following = instructions[k + 1] if k + 1 < len(instructions) else i
        if i.opname == "LOAD_FAST" and name in names and following.opname == "STORE_FAST":
            pending.append((k + 2, following.argval))  # skip = x: one more old name
        elif i.opname.startswith("LOAD_FAST") and name in names and following.argval not in ABOUT:
            loads.add((i.offset, line_of(i)))
        if i.opcode in dis.hasjrel or i.opcode in dis.hasjabs:
            if "BACKWARD" not in i.opname and i.argval in offsets:
                pending.append((offsets[i.argval], name))
            if i.opname in _JUMPS:
                continue
        if not i.opname.startswith(("RETURN", "RAISE", "RERAISE")):
            pending.append((k + 1, name))
    return tuple(loads)


@lru_cache(maxsize=4096)
def loads_after(code: CodeType, call: int, names: tuple[str, ...]) -> Loads:
    """Offsets, with lines, at which one of these names is loaded after the call at that offset, up to its next binding."""
    found, alive = [], set(names)
    instructions = instructions_of(code)
    for i, following in zip(instructions, (*instructions[1:], instructions[-1]), strict=True):
        if i.offset <= call:
            continue
        if i.opname.startswith(("STORE_", "DELETE_")):
            alive.discard(i.argval)
        elif i.opname.startswith("LOAD_") and i.argval in alive and following.argval not in ABOUT:
            found.append((i.offset, line_of(i)))
    return tuple(found)


def held(instructions: Sequence[dis.Instruction], at: int, names: set[str]) -> Loads:
    """
    Where what was loaded under one of these names before a call is used after it, as `x` in `x + self.conv(self.relu(x))`.

    The stack is followed from the beginning of the expression: for each place whether the old value stands there. Offsets
    are one less than the instruction's that uses it. Expressions that jump or turn the stack over are left alone.
    """
    first = next((k for k in range(at - 1, -1, -1) if instructions[k].opname.startswith(_BOUNDARIES)), -1) + 1
    stack: list[bool] = []
    for i in instructions[first:at]:
        if not follow(stack, i, names):
            return ()
    depths = [depth for depth, old in enumerate(stack[:-1]) if old]  # the last one is the argument
    found = []
    for i in instructions[at:]:
        if not depths or i.opname.startswith(("RETURN", "JUMP", "POP_JUMP", "FOR_ITER")) or not follow(stack, i, set()):
            break
        used = [depth for depth in depths if depth >= len(stack) or not stack[depth]]
        found += [(i.offset - 1, line_of(i)) for _ in used]
        depths = [depth for depth in depths if depth not in used]
    return tuple(found)


def follow(stack: list[bool], instruction: dis.Instruction, names: set[str]) -> bool:
    """What an instruction does to the stack; whether that is known."""
    name = instruction.opname
    if name.startswith(_TURNS) or instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs:
        return False
    argument = instruction.arg if instruction.opcode >= dis.HAVE_ARGUMENT else None
    change = dis.stack_effect(instruction.opcode, argument, jump=False)
    if name == "CALL" and sys.version_info < (3, 12):
        change -= argument or 0  # counted with PRECALL, which is left out
    if name == "LOAD_FAST":
        stack.append(instruction.argval in names)
        return True
    if change > 0:
        if name == "LOAD_METHOD" and stack:
            stack[-1] = False
        stack.extend([False] * change)
        return True
    if len(stack) < -change:
        return False
    del stack[len(stack) + change :]
    if stack and not name.startswith(("POP_TOP", "STORE_")):
        stack[-1] = False
    return True


def line_of(instruction: dis.Instruction) -> int:
    """The line of an instruction; 0 if it has none."""
    positions = getattr(instruction, "positions", None)
    return (positions.lineno if positions is not None else instruction.starts_line) or 0


def names_of(name: str, instructions: Sequence[dis.Instruction]) -> set[str]:
    """The name and those that `skip = x` gave to the same value before."""
    names = {name}
    for one, two in zip(instructions, instructions[1:]):  # noqa: B905 - neighbours
        if two.opname == "STORE_FAST":
            if two.argval == name:
                names = {name}
            elif one.opname.startswith("LOAD_FAST") and one.argval in names:
                names.add(two.argval)
            else:
                names.discard(two.argval)
    return names


@lru_cache(maxsize=4096)
def lines_of(code: CodeType, offset: int) -> tuple[int, int]:
    """First and last line of the expression that the instruction at that offset computes."""
    found = next((i for i in dis.get_instructions(code) if i.offset == offset), None)
    positions = getattr(found, "positions", None)
    if positions is not None and positions.lineno:
        return positions.lineno, positions.end_lineno
    line = next((at for start, end, at in code.co_lines() if start <= offset < end and at is not None), None)
    return (0, -1) if line is None else (line, line)


def reads_old_name(frame: FrameType, call: int, loads: Loads) -> bool:
    """Whether what the frame does now takes one of these loads (they follow the call in the same expression or line)."""
    first, last = lines_of(frame.f_code, frame.f_lasti)
    return any(call < offset < frame.f_lasti and first <= line <= last for offset, line in loads)


@lru_cache(maxsize=4096)
def calls_method(code: CodeType, offset: int, method: str) -> bool:
    """Whether the call at that offset is `something.method()`. Autograd dispatches a detach of its own for what it saves."""
    instructions = instructions_of(code)
    at = next((k for k, i in enumerate(instructions) if i.offset == offset), 0)
    before = instructions[at - 1]
    return bool(at) and before.opname in ("LOAD_METHOD", "LOAD_ATTR") and before.argval == method


@lru_cache(maxsize=4096)
def method_called(code: CodeType, offset: int) -> str | None:
    """Name of the method or function that the call at that offset calls; an operator or an assignment has none."""
    instructions = instructions_of(code)
    at = next((k for k, i in enumerate(instructions) if i.offset == offset), None)
    if at is None or not instructions[at].opname.startswith("CALL"):
        return None
    back = [i for i in reversed(instructions[:at]) if i.opname in ("LOAD_METHOD", "LOAD_ATTR", "LOAD_GLOBAL")]
    return next((str(i.argval) for i in back if str(i.argval).endswith("_")), None)


def is_function(code: CodeType) -> bool:
    """Whether this is the forward of an autograd.Function. (Function.apply has no Python frame from torch 2.14 on.)"""
    if code.co_name != "forward":
        return False
    known = _KNOWN.get(code)
    if known is None:
        classes: list[type] = [torch.autograd.Function]
        for one in classes:
            classes += one.__subclasses__()
        forwards = (inspect.unwrap(one.forward) for one in classes)  # type: ignore[attr-defined]
        known = _KNOWN[code] = any(code is getattr(forward, "__code__", None) for forward in forwards)
    return known
