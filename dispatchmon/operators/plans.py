"""
What an operator is: one plan per overload, worked out from its schema when it is first met.

A plan says, by numbers into the tables of the trace, which arguments are tensors, which of them the operator writes, and
what its results are called. `alias_info.is_write` of the schema is the truth to start from; the few schemas that hide a
write are listed in `UNDECLARED_WRITES`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from marshal import dumps, loads
from operator import itemgetter
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from dispatchmon.operators.effects import CONTAINER, SNAPSHOTS, effects_of
from dispatchmon.packed.records import IN_FLIGHT, UNREADY, UNTIL_WAIT
from dispatchmon.packed.tables import Table
from dispatchmon.torch_internals import moves_version_counters


@dataclass(frozen=True)
class Undeclared:
    """A write that no schema declares: the operator, the arguments written, the flag that switches it on, and why we know."""

    operator: str
    arguments: tuple[str, ...]
    flag: str | None
    reason: str


_RUNNING = ("running_mean", "running_var")
_BATCH_NORM = "updates the running statistics in place while training; the schema predates alias annotations"
_COLLECTIVE = "legacy collective: fills its first argument, the schema has no alias annotations"

UNDECLARED_WRITES = {
    u.operator: u
    for u in (
        Undeclared("aten::native_batch_norm", _RUNNING, "training", _BATCH_NORM),
        Undeclared("aten::cudnn_batch_norm", _RUNNING, "training", _BATCH_NORM),
        Undeclared("aten::miopen_batch_norm", _RUNNING, "training", _BATCH_NORM),
        Undeclared("aten::_batch_norm_impl_index", _RUNNING, "training", _BATCH_NORM),
        Undeclared("aten::batch_norm", _RUNNING, "training", _BATCH_NORM),
        Undeclared("aten::instance_norm", _RUNNING, "use_input_stats", _BATCH_NORM),
        Undeclared("aten::batch_norm_update_stats", _RUNNING, None, _BATCH_NORM),
        Undeclared("aten::batch_norm_gather_stats", _RUNNING, None, _BATCH_NORM),
        Undeclared("aten::batch_norm_gather_stats_with_counts", _RUNNING, None, _BATCH_NORM),
        *(
            Undeclared(f"c10d::{name}", (argument,), None, _COLLECTIVE)
            for name, argument in (
                ("allreduce_", "tensors"), ("allreduce_coalesced_", "tensors"), ("broadcast_", "tensors"),
                ("reduce_", "tensors"), ("allgather_", "output_tensors"), ("_allgather_base_", "output_tensor"),
                ("allgather_coalesced_", "output_lists"), ("allgather_into_tensor_coalesced_", "outputs"),
                ("reduce_scatter_", "output_tensors"), ("_reduce_scatter_base_", "output_tensor"),
                ("reduce_scatter_tensor_coalesced_", "outputs"), ("gather_", "output_tensors"),
                ("gather_into_tensor_", "output_tensor"),
                ("scatter_", "output_tensors"), ("alltoall_", "output_tensors"), ("alltoall_base_", "output"),
                ("recv_", "tensors"), ("recv_any_source_", "tensors"),
            )
        ),
        Undeclared("inductor::resize_storage_bytes_", ("variable",), None, "resizes the storage of its argument"),
        Undeclared("inductor::accumulate_grad_", (), None, "writes the `.grad` of its argument, not the argument"),
    )
}  # fmt: skip

# Results of these are memory that nobody has written: their numbers mean nothing until something does.
UNWRITTEN = frozenset(
    f"aten::{name}" for name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided",
                                 "empty_permuted", "empty_quantized", "_efficientzerotensor")
)  # fmt: skip
# These change what a tensor shows, not what the memory holds.
_METADATA_ONLY = ("aten::set_", "aten::set_data", "aten::retain_grad", "aten::record_stream", "aten::requires_grad_")
_OWN_NAMESPACES = ("aten", "prim", "prims", "c10d", "_c10d_functional", "_c10d_functional_autograd", "quantized")

# Why a plan needs more than the plain road; 0 is the plain road.
PLAIN, HIGHER_ORDER, FLAGGED, UNCOUNTED, MAY_LIE, COMPOSITE, NO_OPERATOR, WAIT, KEYED = range(9)


@dataclass(frozen=True, slots=True)
class Plan:
    """What the handler needs to know of one operator overload."""

    operator: int  # number in the table of operators
    by_position: tuple[
        Any, ...
    ]  # argument number of each positional tensor argument; Elements of a list; None: no tensor
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
    effects: int  # what it does to memory beyond its writes, see operator_effects.py
    notable: bool  # its result is noted by the audit: a container that was made, a tensor that was detached


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


class Arguments:
    """The non-tensor arguments of one operator as JSON, interned: the same values give the same number."""

    __slots__ = ("by_name", "known", "names", "pick", "positions", "table")

    def __init__(self, table: Table, positions: Sequence[int], names: Sequence[str], by_name: frozenset[str]) -> None:
        self.table, self.by_name = table, by_name
        self.positions = positions  # of arguments that are no tensors
        self.names = names  # of all positional arguments
        self.pick: dict[int, Any] = {}  # number of positional arguments -> itemgetter of those that are no tensors
        self.known: dict[bytes | str, int] = {}

    def number(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None, scalars: tuple[Any, ...]) -> int:
        """
        The number of these values.

        Args:
            args: positional arguments; the tensors among them are passed over.
            kwargs: the others.
            scalars: (argument number, value, ...) where a number stands in the place of a tensor, as in `x + 1`.
        """
        length = len(args)
        try:
            pick = self.pick[length]
        except KeyError:
            found = [p for p in self.positions if p < length]
            pick = self.pick[length] = itemgetter(*found) if found else None
        values = None if pick is None else pick(args)
        if not kwargs and not scalars and pick is None:
            return 0
        try:
            # A key that tells 1, 1.0 and True apart; version 2 has no references, so equal values give equal bytes.
            key: bytes | str = dumps((values, scalars, kwargs), 2)
        except ValueError:  # a dtype, a device, a generator; a tensor, whose `repr` would read all of its elements
            key = repr(plain((values, scalars, [(k, v) for k, v in (kwargs or {}).items() if k in self.by_name])))
        number = self.known.get(key)
        if number is None:
            number = self.known[key] = self.add(args, kwargs)
        return number

    def values(self, number: int) -> list[Any]:
        """The plain values that a number stands for; `inf` and `nan` also where others stand among them."""
        key = next((key for key, known in self.known.items() if known == number), None)
        if key is None:
            return []
        if isinstance(key, bytes):
            return tree_leaves(loads(key))
        return [float(word) for word in re.findall(r"'(-?inf|nan)'", key)]

    def add(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> int:
        """A new number."""
        given = {
            name: value
            for i, (name, value) in enumerate(zip(self.names, args))  # noqa: B905 - defaults are left out of args
            if i in self.positions or isinstance(value, (bool, int, float, complex, torch.SymInt, torch.SymFloat))
        }
        given.update((k, v) for k, v in (kwargs or {}).items() if k in self.by_name)
        return self.table.add(json.dumps({name: plain(value) for name, value in given.items()}, ensure_ascii=False))


def plain(value: Any) -> Any:
    """A non-tensor argument as JSON can hold it; names without `torch.`; infinities and NaN as strings."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format, complex)):
        return str(value).removeprefix("torch.")
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return str(value)
    return type(value).__name__


def readiness(name: str, namespace: str) -> int:
    """Why the results of an operator mean nothing yet when it returns; 0 if they do."""
    if name in UNWRITTEN:
        return UNREADY
    if namespace == "c10d":
        return IN_FLIGHT
    return UNTIL_WAIT if "c10d" in namespace and not name.endswith("wait_tensor") else 0


def mutation_of(schema: Any, declared: bool, undeclared: bool) -> str:
    """The trace's word for what an operator writes."""
    if not declared:
        return "undeclared" if undeclared else "none"
    short = schema.name.rsplit("::", 1)[-1]
    if short.endswith("_") and not short.endswith("__"):
        return "inplace"
    return "out" if any(argument.is_out for argument in schema.arguments) else "other"


def is_uncounted(schema: Any, namespace: str) -> bool:
    """
    Whether nothing above a mode moves the version counters of what the operator writes.

    Operators on lists (`_foreach_add_`), those whose schema hides a write (`c10d::allgather_`) and some custom ones have no
    kernel for it: the operators inside theirs move them.
    """
    lists = any(a.alias_info is not None and a.alias_info.is_write and "List" in str(a.type) for a in schema.arguments)
    return (lists or namespace not in _OWN_NAMESPACES) and not moves_version_counters(schema)


class Plans(dict[Any, Plan]):
    """Overload -> plan, made at first sight."""

    def __init__(self, operators: Table, arguments: Table, literals: Table, ops: Sequence[str] = ("*",)) -> None:
        self.operators, self.arguments, self.literals, self.ops = operators, arguments, literals, ops
        self.quiet: dict[Any, Plan] = {}  # plans of operators whose flag says that they do not write this time
        self.lying: dict[Any, tuple[int, dict[int, tuple[int, int]]]] = {}
        self.names: dict[int, str] = {}  # of tensor arguments, by number
        self.roles: dict[int, str] = {}  # `input` or `output`

    def __missing__(self, func: Any) -> Plan:
        schema = getattr(func, "_schema", None)
        plan = self[func] = self.of_higher_order(func) if schema is None else self.of_schema(func, schema, False)
        return plan

    def forget_arguments(self) -> None:
        """Numbers of non-tensor arguments given so far will not be used again."""
        for plan in (*self.values(), *self.quiet.values()):
            plan.arguments.known.clear()

    def measured(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.ops)

    def argument(self, role: str, name: str, kind: str, written: bool) -> Any:
        """Number of a tensor argument, Elements of a list of tensors, None for anything else."""
        if "Tensor" not in kind:
            return None

        def make(name: str) -> int:
            number = self.arguments.add((role, name, written))
            self.names[number], self.roles[number] = name, role
            return number

        return Elements(make, name) if "List" in kind else make(name)

    def of_higher_order(self, func: Any) -> Plan:
        name = f"higher_order.{func.name()}"
        everything = Elements(lambda n: self.arguments.add(("input", n, False)), "args")
        results = Elements(lambda n: self.arguments.add(("output", n, False)), "out")
        number = self.operators.add((name, "none"))
        nothing = Arguments(self.literals, (), (), frozenset())
        return Plan(
            number,
            (everything,),
            {},
            (),
            (results,),
            nothing,
            False,
            HIGHER_ORDER,
            False,
            self.measured(name),
            0,
            name,
            0,
            False,
        )

    def unseen(self, number: int, name: str) -> Plan:
        """A stand-in for an operator that never came here."""
        nothing = Arguments(self.literals, (), (), frozenset())
        return Plan(number, (), {}, (), (), nothing, False, NO_OPERATOR, False, False, 0, name, 0, False)

    def of_schema(self, func: Any, schema: Any, quiet: bool) -> Plan:
        hidden = UNDECLARED_WRITES.get(schema.name)
        positions, names, others = [], [], set()
        by_position, by_name, writes, declared = [], {}, [], False
        for i, argument in enumerate(schema.arguments):
            kind = str(argument.type)
            declares = argument.alias_info is not None and argument.alias_info.is_write
            declared |= declares
            written = declares or (hidden is not None and not quiet and argument.name in hidden.arguments)
            number = by_name[argument.name] = self.argument("input", argument.name, kind, written)
            if not argument.kwarg_only:
                by_position.append(number)
                names.append(argument.name)
            if number is None:
                others.add(argument.name)
                if not argument.kwarg_only:
                    positions.append(i)
            elif written:
                writes.append((i, argument.name, self.argument("output", argument.name, kind, True)))
        outputs = tuple(
            None if result.alias_info is not None and result.alias_info.is_write
            else self.argument("output", result.name or f"out{i}", str(result.type), False)
            for i, result in enumerate(schema.returns)
        )  # fmt: skip
        name, namespace = str(func), schema.name.split("::", 1)[0]
        arguments = Arguments(self.literals, positions, names, frozenset(others))
        effects = effects_of(schema, func.tags, bool(writes) and not declared)
        number = self.operators.add((name, mutation_of(schema, declared, bool(writes) and not declared)))
        return Plan(
            number, tuple(by_position), by_name, tuple(writes), outputs, arguments, bool(others),
            self.special(schema, namespace, hidden, quiet, declared),
            torch.Tag.inplace_view not in func.tags and schema.name not in _METADATA_ONLY,
            self.measured(name), readiness(schema.name, namespace),
            name, effects, bool(effects & (SNAPSHOTS | CONTAINER)),
        )  # fmt: skip

    @staticmethod
    def special(schema: Any, namespace: str, hidden: Undeclared | None, quiet: bool, declared: bool) -> int:
        if namespace == "profiler":  # record_function's marks
            return NO_OPERATOR
        if schema.name.endswith("::wait_tensor"):
            return WAIT
        if hidden is not None and hidden.flag is not None and not quiet:
            return FLAGGED
        if hidden is not None and hidden.flag is None or declared and is_uncounted(schema, namespace):
            return UNCOUNTED
        if schema.name in ("aten::linear", "aten::matmul"):
            return COMPOSITE
        if schema.name in ("aten::linalg_pinv", "aten::_trilinear"):  # found by tests/operator_sweep.py
            return KEYED
        aliases = any(a.alias_info is not None for a in (*schema.arguments, *schema.returns))
        if not aliases and hidden is None and namespace not in _OWN_NAMESPACES:
            return MAY_LIE
        return PLAIN

    def flagged(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan:
        """The plan of an operator whose undeclared write depends on a flag among its arguments."""
        plan = self[func]
        schema = func._schema
        flag = UNDECLARED_WRITES[schema.name].flag
        position = next(i for i, a in enumerate(schema.arguments) if a.name == flag)
        value = (
            args[position] if position < len(args) else kwargs.get(str(flag), schema.arguments[position].default_value)
        )
        if value and any((args[p] if p < len(args) else kwargs.get(name)) is not None for p, name, _ in plan.writes):
            return plan
        quiet = self.quiet.get(func)
        if quiet is None:
            quiet = self.quiet[func] = self.of_schema(func, schema, True)
        return quiet

    def liar(self, func: Any) -> tuple[int, dict[int, tuple[int, int]]]:
        """The operator number, and the argument numbers by those of its inputs, of calls that wrote what is not declared."""
        known = self.lying.get(func)
        if known is None:
            known = self.lying[func] = (self.operators.add((str(func), "undeclared")), {})
        return known

    def lied_about(self, func: Any, argument: int) -> tuple[int, int]:
        """(input, output) numbers of an argument that turned out to be written."""
        numbers = self.liar(func)[1]
        pair = numbers.get(argument)
        if pair is None:
            name = self.names[argument]
            pair = numbers[argument] = (
                self.arguments.add(("input", name, True)), self.arguments.add(("output", name, True)))  # fmt: skip
        return pair
