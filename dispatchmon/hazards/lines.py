"""
What a line of the program says, from its source: what it writes, under which name, and whose that is.

The syntax tree of a file is read when a finding first asks for one of its lines; no code of the program runs. Where there is
no source, or a Python that was told to keep no columns (`-X no_debug_ranges`), a line says nothing.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from types import CodeType
from typing import Any

import torch
from torch import Tensor

_AUGMENTED = {
    ast.Add: "add_", ast.Sub: "sub_", ast.Mult: "mul_", ast.Div: "div_", ast.FloorDiv: "floor_divide_", ast.Mod: "remainder_",
    ast.Pow: "pow_", ast.BitAnd: "bitwise_and_", ast.BitOr: "bitwise_or_", ast.BitXor: "bitwise_xor_",
    ast.LShift: "__ilshift__", ast.RShift: "__irshift__",
}  # fmt: skip
_NUMBERS_AS_TENSORS = ("add_", "sub_", "mul_", "div_")  # Python hands the number over as a tensor
_STORES = ("copy_", "index_put_", "fill_", "masked_fill_", "zero_")  # x[i] = y
_LONGEST_FILE = 100_000  # lines
LONGEST = 80  # characters of a line that a finding quotes


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
    if not isinstance(packet, torch._ops.OpOverloadPacket):  # `__init__` is an attribute of the namespace, no operator
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


def inside(node: Any, place: tuple[int, int, int, int]) -> bool:
    """Whether a node of the tree lies within a place."""
    line, end, column, end_column = place
    return (line, column) <= (node.lineno, node.col_offset) and (node.end_lineno, node.end_col_offset) <= (end, end_column)


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
    function = function_at(code, node)
    if function is None:
        return False
    before = [(n.lineno, n) for n in bindings(function, receiver.id) if n.lineno < node.lineno]
    last = max(before, key=lambda each: each[0], default=(0, None))[1]
    given = (each.value for each in ast.walk(function) if isinstance(each, ast.Assign) and last in each.targets)
    return any(isinstance(each, ast.Attribute) for each in given)


def function_at(code: CodeType, node: ast.AST) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The function of this code around a node of its tree."""
    tree = tree_of(code.co_filename)
    for each in () if tree is None else ast.walk(tree):
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)) and each.name == code.co_name and covers(each, spot(node)):
            return each
    return None


def bindings(function: ast.AST, name: str) -> list[ast.Name | ast.arg]:
    """Where a function gives a name a value."""
    return [
        n for n in ast.walk(function)
        if (isinstance(n, ast.arg) and n.arg == name)
        or (isinstance(n, ast.Name) and n.id == name and not isinstance(n.ctx, ast.Load))
    ]  # fmt: skip


@lru_cache(maxsize=4096)
def argument_written(code: CodeType, instruction: int, op: str) -> tuple[int, str] | None:
    """
    Position and name of the argument that a line of a plain function writes and that the function returns.

    None for what says that it writes: a name that ends in `_`, an argument `out` or `inplace`; and for a forward, whose
    arguments are followed otherwise.
    """
    words = written_at(code, instruction, op)[0]
    node = node_at(code, instruction) if words is not None else None
    function = function_at(code, node) if node is not None else None
    if words is None or node is None or function is None or code.co_name == "forward" or code.co_name.endswith("_"):
        return None
    name = words.split("[")[0].split(".")[0]
    arguments = code.co_varnames[: code.co_argcount]
    if name not in arguments or {"out", "inplace"} & set(arguments) or "in_place" in arguments:
        return None
    if words not in (name, f"{name}.data") and not words.startswith(f"{name}["):
        return None
    if any(isinstance(n, ast.Name) and n.lineno < spot(node)[0] for n in bindings(function, name)):
        return None
    returned = [each.value for each in ast.walk(function) if isinstance(each, ast.Return)]
    if not any(isinstance(n, ast.Name) and n.id == name for each in returned for n in parts(each)):
        return None
    return arguments.index(name), name


def parts(node: ast.AST | None) -> list[ast.AST]:
    """An expression, or the elements of a tuple or list."""
    return list(node.elts) if isinstance(node, (ast.Tuple, ast.List)) else [] if node is None else [node]


@lru_cache(maxsize=4096)
def given_names(code: CodeType, instruction: int, position: int, argument: str) -> tuple[str, ...]:
    """
    Under which names the caller still has what it gave in this place of a call: the old one, and containers that hold it.

    Empty if the result goes to the same name or to none, or if the argument is no plain name.
    """
    place, tree = place_of(code, instruction), tree_of(code.co_filename)
    if place is None or tree is None:
        return ()
    assignments = (n for n in ast.walk(tree) if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call))
    statement = next((n for n in assignments if spot(n.value) == place), None)
    if statement is None or not isinstance(statement.value, ast.Call):
        return ()
    call = statement.value
    shift = 1 if argument_is_shifted(call, position) else 0
    given: Any = next((k.value for k in call.keywords if k.arg == argument), None)
    if given is None and 0 <= position - shift < len(call.args):
        given = call.args[position - shift]
    targets = {n.id for t in statement.targets for n in parts(t) if isinstance(n, ast.Name)}
    function = function_at(code, statement)
    if not isinstance(given, ast.Name) or given.id in targets or not targets or function is None:
        return ()
    return given.id, *{each for each, line in holders(function, given.id) if line < call.lineno}


def argument_is_shifted(call: ast.Call, position: int) -> bool:
    """Whether a call is one of a method, whose first argument is not in the call: `self.ban(scores)`."""
    return isinstance(call.func, ast.Attribute) and position > 0 and isinstance(call.func.value, ast.Name) and (
        call.func.value.id in ("self", "cls")
    )


def holders(function: ast.AST, name: str) -> Iterator[tuple[str, int]]:
    """Names of lists and the like into which a function puts a value, with lines: `kept.append(x)`."""
    for n in ast.walk(function):
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr in ("append", "add", "insert"):
            holds = any(isinstance(a, ast.Name) and a.id == name for a in n.args)
            if holds and isinstance(n.func.value, ast.Name):
                yield n.func.value.id, n.lineno


def statement_at(code: CodeType, instruction: int) -> str | None:
    """The text of a line, if it is short."""
    place = place_of(code, instruction)
    text = linecache.getline(code.co_filename, place[0]).strip() if place is not None else ""
    return text if 0 < len(text) <= LONGEST else None


def spot(node: Any) -> tuple[int, int, int, int]:
    """The place of a node."""
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset
