"""
What a line that raised was about to write: the operator, the words of the program for it, and the tensor itself.

Torch refuses most writes before the dispatcher sees them, and its error names neither operator nor tensor. What is left
is the line. Its source says what it writes; the frame of the traceback, whose values live as long as the error, says
which tensor that is. Names, attributes and indices are looked up; no code of the user's runs.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType, TracebackType
from typing import Any, NamedTuple

from torch import Tensor, nn

from dispatchmon.hazards.lines import LONGEST, assignment, inside, node_at, overload, place_of, tree_of, writes

_SAME_MEMORY = (
    "data detach view view_as reshape t T mT H mH transpose permute squeeze unsqueeze narrow select unbind split chunk "
    "flatten unflatten expand expand_as diagonal real imag movedim swapaxes"
).split()
_CONTAINERS = (list, tuple, dict, nn.ModuleList, nn.ModuleDict, nn.Sequential, nn.ParameterList, nn.ParameterDict)
NOTHING: Any = object()


class Target(NamedTuple):
    """What a line writes."""

    op: str | None  # as aten.add_.Tensor
    words: str | None  # of the program: `self.weight[:, 0]`
    tensor: Any  # the tensor that the words begin with, or None
    statement: str | None  # the line itself, if it is short
    out_of_place: str | None  # the same as an assignment that writes nothing


UNKNOWN = Target(None, None, None, None, None)


def target_of(traceback: TracebackType) -> Target:
    """What the instruction that raised in this frame of a traceback writes, as far as its source tells."""
    frame = traceback.tb_frame
    node = node_at(frame.f_code, traceback.tb_lasti)
    if node is None:
        return UNKNOWN
    op, receiver, number = writes(node)
    if receiver is None:
        return UNKNOWN
    with variables(frame) as known:
        tensor = looked_up(receiver, known)
    statement = ast.unparse(node)
    return Target(
        None if op is None else overload(op, number),
        ast.unparse(receiver),
        next((t for t in tensors_of(tensor)), None),
        statement if len(statement) <= LONGEST else None,
        assignment(node, receiver, op),
    )


def operands_of(traceback: TracebackType) -> list[Tensor]:
    """The tensors whose names the instruction that raised in this frame uses."""
    place, tree = place_of(traceback.tb_frame.f_code, traceback.tb_lasti), tree_of(traceback.tb_frame.f_code.co_filename)
    if place is None or tree is None:
        return []
    nodes = [n for n in ast.walk(tree) if isinstance(n, ast.expr) and inside(n, place)]
    with variables(traceback.tb_frame) as known:
        return [t for n in nodes if isinstance(n, (ast.Name, ast.Attribute)) for t in tensors_of(looked_up(n, known))]


def tensors_of(value: Any) -> Iterator[Tensor]:
    """The tensor, or those in a list."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        yield from (each for each in value if isinstance(each, Tensor))


@contextmanager
def variables(frame: FrameType) -> Iterator[Any]:
    """
    The variables of a frame by name, local ones first.

    Before Python 3.13 a frame keeps the dictionary that it gives out, and so all values in it. A frame that goes on running
    gets it emptied again, unless the program holds it as well (`locals()`).
    """
    values = frame.f_locals
    yield lambda name: values.get(name, frame.f_globals.get(name, NOTHING))
    function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
    if function and sys.version_info < (3, 13) and runs(frame) and sys.getrefcount(values) <= 4:
        values.clear()


def runs(frame: FrameType) -> bool:
    """Whether a frame is still on the stack."""
    each: FrameType | None = sys._getframe()
    while each is not None and each is not frame:
        each = each.f_back
    return each is not None


def looked_up(node: Any, known: Any) -> Any:
    """
    The value of an expression; of a view or an index of a tensor the tensor. NOTHING if that needs code to run.
    """
    if isinstance(node, ast.Name):
        return known(node.id)
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, (ast.List, ast.Tuple)):
        return [looked_up(each, known) for each in node.elts]
    if isinstance(node, ast.Call):
        if not isinstance(node.func, ast.Attribute) or node.func.attr not in _SAME_MEMORY:
            return NOTHING
        value = looked_up(node.func.value, known)
        return value if isinstance(value, Tensor) else NOTHING
    if isinstance(node, ast.Attribute):
        return attribute(looked_up(node.value, known), node.attr)
    if isinstance(node, ast.Subscript):
        value = looked_up(node.value, known)
        if isinstance(value, Tensor):
            return value
        index = looked_up(node.slice, known)
        if type(value) in _CONTAINERS and type(index) in (int, str):
            try:
                return value[index]
            except (LookupError, AttributeError):
                return NOTHING
    return NOTHING


def attribute(value: Any, name: str) -> Any:
    """An attribute that stands in an object, without asking the object."""
    if isinstance(value, Tensor):
        if name == "grad":
            return value.grad if not value._is_view() and value.is_leaf else NOTHING
        return value if name in _SAME_MEMORY else NOTHING
    if isinstance(value, ModuleType):
        return vars(value).get(name, NOTHING)
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return NOTHING
    if not isinstance(own, dict):
        return NOTHING
    tables = [own]
    if isinstance(value, nn.Module):
        tables += [table for key in ("_parameters", "_buffers", "_modules") if isinstance(table := own.get(key), dict)]
    return next((table[name] for table in tables if name in table), NOTHING)
