"""
Contexts: a module call, a step and a phase as one number, and which autograd nodes were made in which context.

Every autograd node gets a number when it is made, one more than the node before. At each change of context the number that
comes next is noted, so a node that runs in backward leads to the context in which it was made.
"""

from __future__ import annotations

from bisect import bisect_right

from dispatchmon.packed.records import CONTEXT, POSITION
from dispatchmon.packed.tables import Tables
from dispatchmon.torch_internals import next_sequence_number

pack_context, pack_position = CONTEXT.pack, POSITION.pack
MOST_POSITIONS = 1 << 20  # kept for the module filter


class Contexts:
    """Adds contexts and positions to the tables. `current` and `measured` are those of the operator in hand."""

    def __init__(self, tables: Tables, filtered: bool) -> None:
        self.tables = tables
        self.filtered = filtered  # statistics are asked for in some modules only
        self.current = 0
        self.measured = not filtered  # whether statistics are asked for here
        self.added = 0
        self.positions: tuple[list[int], list[bool]] = ([], [])  # number of the next node, whether measured

    def add(self, module: int, call: int, step: int, micro_step: int, phase: int, caller: int, training: int) -> int:
        """A new context, by number."""
        self.tables.contexts.extend(pack_context(module, call, step, micro_step, phase, caller, training))
        self.added += 1
        return self.added - 1

    def go_to(self, context: int, measured: bool) -> None:
        """From here on operators belong to this context."""
        self.current, self.measured = context, measured
        number = next_sequence_number()
        self.tables.positions.extend(pack_position(number, context))
        if self.filtered:
            self.positions[0].append(number)
            self.positions[1].append(measured)
            if len(self.positions[0]) > MOST_POSITIONS:
                for column in self.positions:
                    del column[: -MOST_POSITIONS // 2]

    def measured_at(self, number: int) -> bool:
        """Whether statistics are asked for where a node was made."""
        i = bisect_right(self.positions[0], number) - 1
        return i >= 0 and self.positions[1][i]
