"""
What an operator is: one plan per overload, worked out from its schema when it is first met.

A plan says, by numbers into the tables of the trace, which arguments are tensors, which of them the operator writes, and
what its results are called. What the schema says of writes is read in `schemas.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch

from dispatchmon.operators.arguments import Arguments
from dispatchmon.operators.effects import COMPARES, CONTAINER, SNAPSHOTS, effects_of
from dispatchmon.operators.plan import (
    COMPOSITE,
    FACTORY,
    FLAGGED,
    HIGHER_ORDER,
    KEYED,
    LEAVES_SCRATCH,
    MAY_LIE,
    NO_OPERATOR,
    PLAIN,
    UNCOUNTED,
    WAIT,
    Elements,
    Plan,
)
from dispatchmon.operators.schemas import (
    METADATA_ONLY,
    OWN_NAMESPACES,
    SCRATCH_RESULTS,
    UNDECLARED_WRITES,
    Undeclared,
    is_uncounted,
    mutation_of,
    readiness,
)
from dispatchmon.packed.tables import Table


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
            torch.Tag.inplace_view not in func.tags and schema.name not in METADATA_ONLY,
            self.measured(name), readiness(schema.name, namespace),
            name, effects, bool(effects & (SNAPSHOTS | CONTAINER | COMPARES)),
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
        if schema.name in ("aten::linalg_pinv", "aten::_trilinear"):  # found by tests/judges/operator_sweep.py
            return KEYED
        if schema.name in SCRATCH_RESULTS:
            return LEAVES_SCRATCH
        aliases = any(a.alias_info is not None for a in (*schema.arguments, *schema.returns))
        if not aliases and hidden is None and namespace not in OWN_NAMESPACES:
            return MAY_LIE
        if not any("Tensor" in str(argument.type) for argument in schema.arguments):
            return FACTORY
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
