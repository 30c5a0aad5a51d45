"""
What a line that raised was about to write: the operator, the words of the program for it, and the tensor itself.

Torch refuses most writes before the dispatcher sees them, and its error names neither operator nor tensor. What is left
is the line. Its source says what it writes; the frame of the traceback, whose values live as long as the error, says
which tensor that is. Names, attributes and indices are looked up; no code of the user's runs.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from types import CodeType, FrameType, ModuleType, TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

_AUGMENTED = {
    ast.Add: "add_", ast.Sub: "sub_", ast.Mult: "mul_", ast.Div: "div_", ast.FloorDiv: "floor_divide_", ast.Mod: "remainder_",
    ast.Pow: "pow_", ast.BitAnd: "bitwise_and_", ast.BitOr: "bitwise_or_", ast.BitXor: "bitwise_xor_",
    ast.LShift: "__ilshift__", ast.RShift: "__irshift__",
}  # fmt: skip
_NUMBERS_AS_TENSORS = ("add_", "sub_", "mul_", "div_")  # Python hands the number over as a tensor
_STORES = ("copy_", "index_put_", "fill_", "masked_fill_", "zero_")  # x[i] = y
_SAME_MEMORY = (
    "data detach view view_as reshape t T mT H mH transpose permute squeeze unsqueeze narrow select unbind split chunk "
    "flatten unflatten expand expand_as diagonal real imag movedim swapaxes"
).split()
_CONTAINERS = (list, tuple, dict, nn.ModuleList, nn.ModuleDict, nn.Sequential, nn.ParameterList, nn.ParameterDict)
_LONGEST_FILE = 100_000  # lines
_LONGEST_LINE = 80  # characters that a finding quotes
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
        statement if len(statement) <= _LONGEST_LINE else None,
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


def inside(node: Any, place: tuple[int, int, int, int]) -> bool:
    """Whether a node of the tree lies within a place."""
    line, end, column, end_column = place
    return (line, column) <= (node.lineno, node.col_offset) and (node.end_lineno, node.end_col_offset) <= (end, end_column)


def tensors_of(value: Any) -> Iterator[Tensor]:
    """The tensor, or those in a list."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        yield from (each for each in value if isinstance(each, Tensor))


@lru_cache(maxsize=4096)
def written_at(code: CodeType, instruction: int, op: str) -> tuple[str | None, str | None]:
    """
    The words of a line for what this operator wrote there, and the same without a write; None if the line does not say so.
    """
    node = node_at(code, instruction)
    if node is None:
        return None, None
    name, receiver, number = writes(node)
    if name is None or receiver is None:
        return None, None
    said, done = (each.split(".")[1] if each.startswith("aten.") else each for each in (overload(name, number), op))
    if said != done and not (isinstance(node, ast.Assign) and done in _STORES):
        return None, None
    return ast.unparse(receiver), assignment(node, receiver, name)


@lru_cache(maxsize=4096)
def operands_differ(code: CodeType, instruction: int) -> bool:
    """Whether the two operands of a difference or comparison have different words; False if that is not known."""
    place, tree = place_of(code, instruction), tree_of(code.co_filename)
    if place is None or tree is None:
        return False
    for node in ast.walk(tree):
        if not isinstance(node, ast.expr) or not (inside(node, place) and covers(node, place)):
            continue
        if isinstance(node, ast.BinOp):
            return ast.unparse(node.left) != ast.unparse(node.right)
        if isinstance(node, ast.Compare) and len(node.comparators) == 1:
            return ast.unparse(node.left) != ast.unparse(node.comparators[0])
        if isinstance(node, ast.Call):
            words = [ast.unparse(each) for each in node.args[:2]]
            if len(words) == 1 and isinstance(node.func, ast.Attribute):
                words.insert(0, ast.unparse(node.func.value))
            return len(words) == 2 and words[0] != words[1]
    return False


@lru_cache(maxsize=4096)
def borrowed(code: CodeType, instruction: int) -> bool:
    """Whether a line writes a plain name that its function took from an attribute, as `w = self.weight; w += 1`."""
    node = node_at(code, instruction)
    receiver = writes(node)[1] if node is not None else None
    if not isinstance(receiver, ast.Name) or not isinstance(node, (ast.AugAssign, ast.Call)):
        return False
    tree = tree_of(code.co_filename)
    function = next(
        (f for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) and f.name == code.co_name and covers(f, spot(node))), None
    ) if tree is not None else None  # fmt: skip
    if function is None:
        return False
    before = [(n.lineno, n) for n in ast.walk(function) if binds(n, receiver.id) and n.lineno < node.lineno]
    last = max(before, key=lambda each: each[0], default=(0, None))[1]
    given = (each.value for each in ast.walk(function) if isinstance(each, ast.Assign) and last in each.targets)
    return any(isinstance(each, ast.Attribute) for each in given)


def binds(node: Any, name: str) -> bool:
    """Whether a node of the tree gives a name a value."""
    if isinstance(node, ast.arg):
        return node.arg == name
    return isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load)


def statement_at(code: CodeType, instruction: int) -> str | None:
    """The text of a line, if it is short."""
    place = place_of(code, instruction)
    text = linecache.getline(code.co_filename, place[0]).strip() if place is not None else ""
    return text if 0 < len(text) <= _LONGEST_LINE else None


def spot(node: Any) -> tuple[int, int, int, int]:
    """The place of a node."""
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


# ---------------------------------------------------------------------------------------------------- the source
@lru_cache(maxsize=2)
def tree_of(filename: str) -> ast.Module | None:
    """The syntax tree of a file; None if there is none, or it is no Python that this version reads."""
    lines = linecache.getlines(filename)
    if not 0 < len(lines) <= _LONGEST_FILE:
        return None
    try:
        return ast.parse("".join(lines))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def place_of(code: CodeType, instruction: int) -> tuple[int, int, int, int] | None:
    """First line, last line, first and last column of what an instruction belongs to."""
    if not hasattr(code, "co_positions"):  # before Python 3.11
        return None
    line, end, column, end_column = next(islice(code.co_positions(), instruction // 2, None), (None,) * 4)
    if line is None or end is None or column is None or end_column is None:
        return None
    return line, end, column, end_column


def node_at(code: CodeType, instruction: int) -> ast.AST | None:
    """The innermost statement or call that writes something and covers this instruction."""
    place, tree = place_of(code, instruction), tree_of(code.co_filename)
    if place is None or tree is None:
        return None
    best = None
    for node in ast.walk(tree):
        if isinstance(node, (ast.AugAssign, ast.Assign, ast.Call)) and covers(node, place):
            is_call = isinstance(node, ast.Call)
            if is_call and (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset) != place:
                continue  # an argument of the call raised, not the call
            if best is None or covers(best, (node.lineno, node.end_lineno or 0, node.col_offset, node.end_col_offset or 0)):
                best = node
    return best


def covers(node: Any, place: tuple[int, int, int, int]) -> bool:
    """Whether a place lies within a node of the tree."""
    line, end, column, end_column = place
    return (node.lineno, node.col_offset) <= (line, column) and (end, end_column) <= (node.end_lineno, node.end_col_offset)


def writes(node: Any) -> tuple[str | None, Any, bool]:
    """The operator that a statement or call writes with, the expression that is written, whether it is given a number."""
    if isinstance(node, ast.AugAssign):
        return _AUGMENTED.get(type(node.op)), node.target, isinstance(node.value, ast.Constant)
    if isinstance(node, ast.Assign):
        target = next((t for t in node.targets if isinstance(t, ast.Subscript)), None)
        return ("copy_", target, False) if target is not None else (None, None, False)
    out = next((k.value for k in node.keywords if k.arg == "out"), None)
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if out is not None:
        return f"{name}.out", out, False
    first = node.args[0] if node.args else None
    if isinstance(node.func, ast.Attribute) and not belongs_to_torch(node.func.value):
        if not name.endswith("_"):  # a function or module that writes what it is given
            return None, first, False
        return name, node.func.value, isinstance(first, ast.Constant)
    return name, first, False


def belongs_to_torch(node: ast.AST) -> bool:
    """Whether an expression is `torch`, `torch.nn.init`, `F` and the like: functions that write their first argument."""
    text = ast.unparse(node)
    return text in ("F", "init", "functional", "nn") or text.split(".")[0] == "torch" or text.startswith("nn.")


def overload(name: str, number: bool) -> str:
    """`aten.add_.Tensor` of `add_`: the overload that Python's arguments most likely lead to."""
    if name.endswith(".out"):
        return f"aten.{name}"
    name = {"__iadd__": "add_", "__isub__": "sub_", "__imul__": "mul_", "__itruediv__": "div_"}.get(name, name)
    packet = getattr(torch.ops.aten, name, None) if name.endswith("_") else None
    if packet is None:
        return f"aten.{name}" if name.endswith("_") else name
    known = packet.overloads()
    scalar = number and name not in _NUMBERS_AS_TENSORS
    order = ("Scalar", "default", "Tensor") if scalar else ("default", "Tensor", "Scalar")
    return f"aten.{name}.{next((each for each in order if each in known), known[0])}"


def assignment(node: Any, receiver: ast.AST, op: str | None) -> str | None:
    """`x = x + 1` of `x += 1`, `x = x.relu()` of `x.relu_()`; of an attribute, which may be a parameter, `y = self.w + 1`."""
    read: ast.AST = receiver
    while isinstance(read, ast.Attribute) and read.attr == "data":
        read = read.value
    if not isinstance(read, (ast.Name, ast.Attribute)):
        return None
    name = read.id if isinstance(read, ast.Name) else "y"
    if isinstance(node, ast.AugAssign):
        return f"{name} = {ast.unparse(ast.BinOp(read, node.op, node.value))}"
    is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.value is receiver
    if is_method and op and op.endswith("_") and hasattr(Tensor, op.rstrip("_")):
        arguments = ", ".join(ast.unparse(each) for each in (*node.args, *node.keywords))
        return f"{name} = {ast.unparse(read)}.{op.rstrip('_')}({arguments})"
    return None


# ---------------------------------------------------------------------------------------------------- the values
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
            return value.grad if value.is_leaf else NOTHING
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
