"""
`on_nonfinite`: what happens when an operator makes a NaN or Inf while the program runs.

Nothing is computed for it. The number of NaN and infinite elements that were measured anyway is compared before and after
each operator; only if it grew, the rows of the event are looked at.
"""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils._pytree import tree_leaves

from dispatchmon.errors import NonFiniteError
from dispatchmon.observing.scaler import Scaler
from dispatchmon.operators.plan import Plan
from dispatchmon.operators.plans import Plans
from dispatchmon.packed.records import EMPTY, EVENT_FIELDS, LIVE, ROW, ROW_FIELDS
from dispatchmon.packed.totals import COUNT, INF, MAX, MIN, NAN, POSINF, ZERO
from dispatchmon.schema import PHASES
from dispatchmon.statistics.table import Statistics
from dispatchmon.words import nonfinite as sentences
from dispatchmon.writing.converter import Converter

_ALLOCATORS = ("aten::empty", "aten::new_empty", "aten::resize_", "aten::set_")
PATIENCE = 5.0  # seconds that the sink is given to name the place


@dataclass
class Spoiled:
    """An event that made a NaN or Inf."""

    pending: Any
    output: dict[str, Any]
    inputs: list[dict[str, Any]]
    events: bytes | None = None  # the packed events of its batch, if that was handed over since


class FirstNonFinite:
    """
    Looks at each event in which NaN or Inf was measured, and speaks up at the first that made some.

    An operator made some if all it read was finite and what it wrote is not, or if it made NaN and read Inf but no NaN.
    Constants that are filled in on purpose, memory that nobody has written yet and what other ranks sent do not count, nor
    do gradients that overflow while a GradScaler looks for its scale.

    Args:
        statistics: where NaN and Inf are counted.
        plans: what the operators are.
        raises: raise a `NonFiniteError`, or warn.
        catch_up: called to have all events so far converted; returns the converter and the packed events of this batch.
    """

    def __init__(
        self,
        statistics: Statistics,
        plans: Plans,
        raises: bool,
        catch_up: Callable[[], tuple[Converter, bytes]],
    ) -> None:
        self.statistics, self.plans, self.raises, self.catch_up = statistics, plans, raises, catch_up
        self.seen = 0  # of the NaN and Inf that were measured
        self.spoke = False
        self.scaler = Scaler()

    def look(self, rows: bytearray, plan: Plan, pending: Any, args: Any, kwargs: Any) -> Spoiled | None:
        """Look at the rows of the event in hand: did it make a NaN or Inf?"""
        self.seen = self.statistics.nonfinite
        if self.spoke or not self.can_be_its_making(plan, tree_leaves((args, kwargs))):
            return None
        return self.judge(pending, *self.values(rows, pending[0]))

    def look_back(self, rows: bytearray, events: bytearray) -> Spoiled | None:
        """The same, for all events of the batch so far, once what was measured on a device has been fetched."""
        self.seen = self.statistics.nonfinite
        slots, self.statistics.spoiled = self.statistics.spoiled, []
        if self.spoke or not slots:
            return None
        table = np.frombuffer(bytes(rows), np.int64).reshape(-1, ROW_FIELDS)
        packed = bytes(events)
        known = {int(e[0]): e for e in np.frombuffer(packed, np.int64).reshape(-1, EVENT_FIELDS)}
        plans = {plan.operator: plan for plan in (*self.plans.values(), *self.plans.quiet.values())}
        for number in dict.fromkeys(table[np.isin(table[:, 5], slots), 0].tolist()):
            event = known.get(number)
            plan = None if event is None else plans.get(int(event[1]))
            if event is None or plan is None or not self.can_be_its_making(plan, plan.arguments.values(int(event[2]))):
                continue
            end = (int(np.flatnonzero(table[:, 0] == number)[-1]) + 1) * ROW.size
            pending = (number, *(int(field) for field in event[2:7]))
            if (found := self.judge(pending, *self.values(rows[:end], number))) is not None:
                found.events = packed
                return found
        return None

    def judge(self, pending: Any, inputs: list[dict[str, Any]], outputs: list[dict[str, Any]]) -> Spoiled | None:
        """Whether an event made a NaN or Inf of what went in."""
        spoiled = [v for v in outputs if v["nonfinite"]]
        if not spoiled or not all(v["measured"] for v in inputs):
            return None
        nan = next((v for v in spoiled if v["counts"]["n"]), None)
        if any(v["nonfinite"] for v in inputs) and (nan is None or any(v["counts"]["n"] for v in inputs)):
            return None
        if nan is None and pending[4] != LIVE and self.scaler.at_work():
            return None
        self.spoke = True
        return Spoiled(pending, nan or spoiled[0], inputs)

    def can_be_its_making(self, plan: Plan, given: Iterable[Any]) -> bool:
        """Whether what comes out of this call can have been made by the operator, and was not among the numbers given."""
        operator = next((f for f, p in self.plans.items() if p.operator == plan.operator), None)
        schema = getattr(operator, "_schema", None)
        name = "" if schema is None else str(schema.name)
        if name.startswith(_ALLOCATORS) or "c10d" in name:
            return False
        return all(math.isfinite(x) for x in given if isinstance(x, float))

    def values(self, rows: bytearray, event: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """What was measured of the inputs and outputs of an event."""
        inputs: list[dict[str, Any]] = []
        outputs: list[dict[str, Any]] = []
        at = len(rows) - ROW.size
        while at >= 0:
            number, argument, geometry, _, _, slot = ROW.unpack_from(rows, at)
            if number != event:
                break
            at -= ROW.size
            role, name = self.plans.roles.get(argument), self.plans.names.get(argument)
            if role == "output":
                outputs.insert(0, self.numbers(slot, geometry))
            elif name != "out":  # where a result is to be put: nobody reads it
                inputs.insert(0, self.numbers(slot, geometry) | {"arg": name})
        return inputs, outputs

    def numbers(self, slot: int, geometry: int) -> dict[str, Any]:
        """What was measured of one value."""
        found: dict[str, Any] = {"geometry": geometry, "measured": slot >= 0 or slot == EMPTY, "min": None, "max": None}
        found |= {"counts": {"n": 0, "p": 0, "m": 0}, "nonfinite": 0, "zero": None}
        if slot >= 0:
            row = self.statistics.at(slot)
            nan, inf, posinf = int(row[NAN]), int(row[INF]), int(row[POSINF])
            found |= {"counts": {"n": nan, "p": posinf, "m": inf - posinf}, "nonfinite": nan + inf}
            found["zero"] = int(row[ZERO])
            if row[COUNT] > 0:
                found |= {"min": float(row[MIN]), "max": float(row[MAX])}
        return found

    # ------------------------------------------------------------------------------------------------- the sentence
    def speak(self, spoiled: Spoiled) -> None:
        """
        Say where it happened.

        Raises:
            NonFiniteError: if that was asked for.
        """
        text = self.sentence(spoiled)
        if self.raises:
            raise NonFiniteError(text)
        warnings.warn(f"dispatchmon: {text}", RuntimeWarning, stacklevel=2)

    def sentence(self, spoiled: Spoiled) -> str:
        """`aten.log.default` in `head` made 3 -Inf …; with the forward operator, of a backward one."""
        event, _, context, _, node, source = spoiled.pending
        converter, packed = self.catch_up()
        packed = spoiled.events or packed
        events = np.frombuffer(packed, np.int64).reshape(-1, EVENT_FIELDS)
        columns, contexts = converter.columns, converter.contexts

        def at(table: str, column: str, number: int) -> Any:
            return columns[table][column].take(np.array([number]))[0].as_py()

        places, phases, forward_events, known, sources = contexts.of(
            np.array([context]), np.array([node]), np.array([source])
        )
        module = int(contexts.packed[places[0]][0])
        step = int(contexts.packed[context - contexts.base][2])
        float_inputs = [
            v
            for v in spoiled.inputs
            if "float" in (dtype := str(at("geometries", "dtype", v["geometry"]))) or "complex" in dtype
        ]
        geometry = spoiled.output["geometry"]
        text = sentences.made(
            op=at("operators", "name", int(events[events[:, 0] == event][0, 1])),
            module=at("modules", "name", module),
            counts=spoiled.output["counts"],
            numel=at("geometries", "numel", geometry),
            dtype=at("geometries", "dtype", geometry),
            inputs=[
                sentences.Went(
                    v["arg"],
                    v["counts"],
                    v["measured"],
                    v["min"],
                    v["max"],
                    v["zero"],
                    at("geometries", "numel", v["geometry"]),
                )
                for v in float_inputs
            ],
            arguments=json.loads(at("literals", "json", spoiled.pending[1])),
            source=at("sources", "line", int(sources[0])),
            step=step,
            phase=PHASES[int(phases[0])],
        )
        if known[0]:
            forward = events[events[:, 0] == forward_events[0]]
            line = at("sources", "line", int(sources[0]))
            name = f"`{at('operators', 'name', int(forward[0, 1]))}`" if len(forward) else "an operator"
            text += f"; it is the gradient of {name}" + (f" {sentences.at(line)}" if line else "")
        return text


def wait_for(done: Callable[[], bool]) -> None:
    """Wait until the sink has caught up; not for ever."""
    end = time.monotonic() + PATIENCE
    while not done() and time.monotonic() < end:
        time.sleep(0.001)
