"""
Whether a function goes on using a name after it gave that name's value to a call that wrote over it and handed it back.

`y = self.relu(x); return self.conv(y) + x` and `x = self.relu(x); return self.conv(x) + x` send the same operators over the
same memory; only the names differ. They stand in the code object: no frame's local variables are read.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from types import CodeType, FrameType

import torch

from dispatchmon.hazards.bytecode import BACK, Step, at, reached_from, steps_of

Loads = tuple[tuple[int, int], ...]  # (offset, line) of instructions
# Attributes that say nothing of a tensor's content.
ABOUT = frozenset("shape size dim ndim dtype device numel requires_grad is_cuda stride".split())
_JUMPS = ("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT")
_BOUNDARIES = ("STORE_", "POP_", "END_FOR", BACK, "RETURN", "RESUME", "JUMP", "FOR_ITER", "RAISE", "RERAISE")
_TURNS = ("SWAP", "COPY", "UNPACK", "SEND", "YIELD")
_KNOWN: dict[CodeType, bool] = {}


@lru_cache(maxsize=4096)
def later_loads(code: CodeType, call: int) -> Loads:
    """
    Offsets, with lines, at which the only argument of the call at that offset is loaded again under its old name.

    Empty if the argument is no plain name, if the result is thrown away (`self.relu(x)` alone: meant to write) or goes
    to the same name. Both ways of a branch are followed, up to the first rebinding; a loop is not followed back.
    """
    steps = steps_of(code)
    here = at(steps, call)
    if here < 1 or here + 1 >= len(steps) or steps[here].arg != 1:
        return ()
    before, after = steps[here - 1], steps[here + 1]
    if before.op != "LOAD_FAST" or after.op == "POP_TOP":
        return ()
    names = names_of(before.name, steps[:here])
    loads = set(held(steps, here, names))
    pending = [(here + 1, name) for name in names]
    seen: set[tuple[int, str]] = set()
    while pending:
        k, name = pending.pop()
        if (k, name) in seen or k >= len(steps):
            continue
        seen.add((k, name))
        step = steps[k]
        if step.op in ("STORE_FAST", "DELETE_FAST") and step.name == name:
            continue  # another value from here on
        following = steps[k + 1] if k + 1 < len(steps) else step
        if step.op == "LOAD_FAST" and step.name == name and following.op == "STORE_FAST":
            pending.append((k + 2, following.name))  # skip = x: one more old name
        elif step.op == "LOAD_FAST" and step.name == name and following.name not in ABOUT:
            loads.add((step.offset, step.line))
        if step.target is not None:
            if step.target > step.offset:
                pending.append((reached_from(steps, step.target), name))
            if step.op in _JUMPS:
                continue
        if not step.op.startswith(("RETURN", "RAISE", "RERAISE")):
            pending.append((k + 1, name))
    return tuple(loads)


@lru_cache(maxsize=4096)
def loads_after(code: CodeType, call: int, names: tuple[str, ...]) -> Loads:
    """Offsets, with lines, at which one of these names is loaded after the call at that offset, up to its next binding."""
    steps = steps_of(code)
    found, alive = [], set(names)
    for step, following in zip(steps, (*steps[1:], steps[-1]), strict=True):
        if step.offset <= call:
            continue
        if step.op.startswith(("STORE_", "DELETE_")):
            alive.discard(step.name)
        elif step.op.startswith("LOAD_") and step.name in alive and following.name not in ABOUT:
            found.append((step.offset, step.line))
    return tuple(found)


def held(steps: Sequence[Step], call: int, names: set[str]) -> Loads:
    """
    Where what was loaded under one of these names before a call is used after it, as `x` in `x + self.conv(self.relu(x))`.

    The stack is followed from the beginning of the expression: for each place whether the old value stands there. Offsets
    are one less than the instruction's that uses it. Expressions that jump or turn the stack over are left alone.
    """
    first = next((k for k in range(call - 1, -1, -1) if steps[k].op.startswith(_BOUNDARIES)), -1) + 1
    stack: list[bool] = []
    for step in steps[first:call]:
        if not follow(stack, step, names):
            return ()
    depths = [depth for depth, old in enumerate(stack[:-1]) if old]  # the last one is the argument
    found = []
    for step in steps[call:]:
        if not depths or step.op.startswith("RETURN") or not follow(stack, step, set()):
            break
        used = [depth for depth in depths if depth >= len(stack) or not stack[depth]]
        found += [(step.offset - 1, step.line) for _ in used]
        depths = [depth for depth in depths if depth not in used]
    return tuple(found)


def follow(stack: list[bool], step: Step, names: set[str]) -> bool:
    """What a step does to the stack; whether that is known."""
    if step.op.startswith(_TURNS) or step.target is not None:
        return False
    if step.op == "LOAD_FAST":
        stack.append(step.name in names)
        return True
    if step.grows > 0:
        if step.op == "LOAD_METHOD" and stack:
            stack[-1] = False
        stack.extend([False] * step.grows)
        return True
    if len(stack) < -step.grows:
        return False
    del stack[len(stack) + step.grows :]
    if stack and not step.op.startswith(("POP_TOP", "STORE_")):
        stack[-1] = False
    return True


def names_of(name: str, steps: Sequence[Step]) -> set[str]:
    """The name and those that `skip = x` gave to the same value before."""
    names = {name}
    for one, two in zip(steps, steps[1:]):  # noqa: B905 - neighbours
        if two.op == "STORE_FAST":
            if two.name == name:
                names = {name}
            elif one.op == "LOAD_FAST" and one.name in names:
                names.add(two.name)
            else:
                names.discard(two.name)
    return names


def lines_of(code: CodeType, offset: int) -> tuple[int, int]:
    """First and last line of the expression that the instruction at that offset computes."""
    first, last, *_ = next(islice(code.co_positions(), offset // 2, None), (None, None))
    return (0, -1) if first is None else (first, last or first)


def reads_old_name(frame: FrameType, call: int, loads: Loads) -> bool:
    """Whether what the frame does now takes one of these loads (they follow the call in the same expression or line)."""
    first, last = lines_of(frame.f_code, frame.f_lasti)
    return any(call < offset < frame.f_lasti and first <= line <= last for offset, line in loads)


@lru_cache(maxsize=4096)
def calls_method(code: CodeType, offset: int, method: str) -> bool:
    """Whether the call at that offset is `something.method()`. Autograd dispatches a detach of its own for what it saves."""
    steps = steps_of(code)
    here = at(steps, offset)
    return here > 0 and steps[here - 1].op in ("LOAD_METHOD", "LOAD_ATTR") and steps[here - 1].name == method


@lru_cache(maxsize=4096)
def method_called(code: CodeType, offset: int) -> str | None:
    """Name of the method or function that the call at that offset calls; an operator or an assignment has none."""
    steps = steps_of(code)
    here = at(steps, offset)
    if not steps[here].op.startswith("CALL"):
        return None
    back = (s for s in reversed(steps[:here]) if s.op in ("LOAD_METHOD", "LOAD_ATTR", "LOAD_GLOBAL"))
    return next((str(s.name) for s in back if str(s.name).endswith("_")), None)


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
