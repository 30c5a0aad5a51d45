"""
Findings of the running audit: what one write did to somebody else, as integers, until the sink makes a `hazard` row of it.

A finding is packed as the event of its write, with a number of its own; `causes` says which event wrote and which one
was the victim. What has no column is JSON in `arguments`.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from typing import Any, Final, NamedTuple

from dispatchmon.attribution.sources import Sources
from dispatchmon.errors import HazardError
from dispatchmon.hazards.lines import written_at
from dispatchmon.operators.effects import STILL, UNSEEN
from dispatchmon.operators.plan import Plan
from dispatchmon.packed.records import CALLBACK, EVENT, FOREIGN, NOT_ASKED, OWN, RECOMPUTED, ROW, Pending
from dispatchmon.packed.tables import Tables
from dispatchmon.values.tags import LABEL, VALUE
from dispatchmon.values.values import Values
from dispatchmon.words.harmless import printable_lines
from dispatchmon.words.hazards import sentence

MOST_SAID = 100  # warnings of one run


# A write, as the hot path notes it: the event, the plan of its operator, the module, and the number of the
# autograd.Function whose forward wrote, or -1.
Write = tuple[Pending, Plan, str | None, int]
PENDING: Final = 0
PLAN: Final = 1
PATH: Final = 2
INSIDE: Final = 3


class Victim(NamedTuple):
    """The event that lost something: that saved the value, or read it afterwards."""

    event: int
    op: str
    path: str | None
    source: int


class Hazards:
    """Keeps findings until the next batch, and says them at once if that was asked for."""

    def __init__(self, tables: Tables, values: Values, sources: Sources | None, action: str = "record") -> None:
        self.tables, self.values, self.sources, self.action = tables, values, sources, action
        self.found: list[tuple[Any, ...]] = []
        self.arguments: dict[tuple[str, str], int] = {}
        self.unknown: dict[str, int] = {}  # number of an operator as one that noticed a write
        self.said: set[Any] = set()

    def add(
        self,
        kind: str,
        write: Write,
        entry: Any,
        tag: list[Any] | None,
        victim: Victim | None,
        arg: str = "self",
        loud: bool = False,
        quiet: bool = False,
        **details: Any,
    ) -> None:
        """
        A finding.

        Args:
            kind: as in `docs/audit.md`.
            write: who wrote.
            entry: of `Values.geometries`, of the tensor that was written.
            tag: of its memory.
            victim: who lost something, if that is known.
            arg: name of the argument, or that the value was saved under.
            loud: whether autograd notices it.
            quiet: record it, and do not say it again.
            details: what else is known; goes into the row's `arguments`.

        Raises:
            HazardError: `on_hazard="raise"`.
        """
        if "written" not in details and self.sources is not None:
            line = self.sources.instruction(write[PENDING][5])
            if line is not None:
                details["written"], details["instead"] = written_at(*line, write[PLAN].name)
        known = {k: v for k, v in details.items() if v is not None}
        if victim is not None:
            known |= {"victim": [victim.op, victim.path, self.line(victim.source)]}
        text = json.dumps({"finding": kind, **known}, ensure_ascii=False)
        role = "loud" if loud else "silent"
        argument = self.arguments.get((role, arg))
        if argument is None:
            argument = self.arguments[role, arg] = self.tables.arguments.add((role, arg, True))
        if entry[0] < self.tables.geometries.base:
            entry = self.values.geometries[entry[3]]
        value, label = (tag[VALUE], tag[LABEL]) if tag is not None else (-1, 0)
        literal = self.tables.literals.add(text)
        self.found.append((write, argument, entry[0], value, label, literal, -1 if victim is None else victim.event))
        if self.action != "record" and not quiet:
            self.say(kind, write, entry, tag, victim, loud, details)

    def say(
        self, kind: str, write: Write, entry: Any, tag: Any, victim: Victim | None, loud: bool, details: Any
    ) -> None:
        """Warn or raise, once for each place."""
        pending, plan, path, _ = write
        place = kind, plan.operator, path, pending[5], victim and victim[1:]
        if place in self.said or len(self.said) > MOST_SAID:
            return
        self.said.add(place)
        shape, _, offset, _ = entry[3]
        name = None if tag is None else self.values.labels.name(tag[LABEL], offset, tuple(shape))
        text = sentence(
            kind, op=plan.name, module=path, source=self.line(pending[5]), name=name, shape=tuple(shape),
            victim=None if victim is None else (victim.op, victim.path, self.line(victim.source)), loud=loud,
            details=details,
        )  # fmt: skip
        if self.action == "raise":
            raise HazardError(text)
        warnings.warn(f"dispatchmon: {printable_lines(text)}", RuntimeWarning, stacklevel=6)

    def nobody(self, plan: Plan, pending: Any, path: str | None) -> Write:
        """The write that this operator was the first to notice."""
        operator = self.unknown.get(plan.name)
        if operator is None:
            operator = self.unknown[plan.name] = self.tables.operators.add((plan.name, "undeclared"))
        return pending, replace(plan, operator=operator, effects=STILL | UNSEEN, moves_values=True), path, -1

    def line(self, source: int) -> str | None:
        return None if self.sources is None else self.sources.text(source)

    def pack(self, events: bytearray, rows: bytearray, number: Any) -> dict[int, tuple[int, int]]:
        """Append what was found to the records of a batch; (event that wrote, event of the victim) by event of the finding."""
        causes: dict[int, tuple[int, int]] = {}
        for write, argument, geometry, value, label, literal, victim in self.found:
            event, _, context, place, node, source = write[PENDING]
            if source >= OWN:
                source &= ~OWN
                if not FOREIGN < node <= RECOMPUTED:  # the user's code in backward runs in the module that is open, if any
                    node = CALLBACK
            source = source if source >= self.tables.sources.base else 0
            mine = number()
            events.extend(EVENT.pack(mine, write[PLAN].operator, literal, context, place, node, source, 0, 0))
            rows.extend(ROW.pack(mine, argument, geometry, value, label, NOT_ASKED))
            causes[mine] = event, victim
        self.found.clear()
        return causes
