"""
Which operator made an autograd node.

A node is made before its operator comes to the dispatcher, so the operator in hand made the nodes whose numbers were given
since the one before. An operator that writes in place is an exception: it may dispatch a clone of its old value first.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dispatchmon.hazards.findings import Victim, Write
from dispatchmon.module_tracker import ModuleTracker
from dispatchmon.operators.effects import CLONES
from dispatchmon.operators.operands import tensors_in
from dispatchmon.operators.plan import Plan
from dispatchmon.operators.plans import Plans
from dispatchmon.torch_internals import next_sequence_number
from dispatchmon.values.values import Values

ALWAYS = 1 << 62  # above the number of any node
MOST_NODES = 1 << 18
MOST_VIEWS = 1 << 14
MADE = Struct("5q")  # of a node: the number after its own, and the event, operator, module and source that made it
MADE_FIELDS = 5
pack_made = MADE.pack


class Maker(NamedTuple):
    """The operator that made a node, by numbers."""

    event: int
    operator: int
    module: int
    source: int


class Makers:
    """The makers of the nodes of one thread, newest last."""

    def __init__(self, values: Values, tracker: ModuleTracker, plans: Plans) -> None:
        self.values, self.tracker, self.plans = values, tracker, plans
        self.first = next_sequence_number()  # nodes before this were not seen
        self.newest = 0  # number that the next node will have, as far as is known
        self.made = bytearray()  # packed, see MADE
        self.cloned = -1  # event of a clone that an in-place operator may have dispatched
        self.applied: set[int] = set()  # numbers of nodes whose maker is an application of an autograd.Function
        # CopySlices by number: its operator, and the tags of its arguments.
        self.views: dict[int, tuple[Maker, tuple[Any, ...]]] = {}

    def resume(self) -> None:
        """Nodes made before this were not seen."""
        self.first = self.newest = next_sequence_number()

    def ignore(self) -> None:
        """Nobody asks who made the nodes that follow."""
        self.newest = ALWAYS

    def node_made(self, number: int, event: int, plan: Plan, source: int, function: bool = False) -> None:
        """Nodes up to this number were made for this operator, or the function it is the first of, before it came here."""
        if function:
            if len(self.applied) > MOST_NODES:
                self.applied.clear()
            self.applied.update(range(max(self.newest, number - 2), number))
        if plan.effects & CLONES and number > self.newest + 1:
            self.cloned = event
        made = self.made
        if len(made) > MOST_NODES * MADE.size:
            del made[: MOST_NODES // 2 * MADE.size]
            self.first = MADE.unpack_from(made, 0)[0]
        made.extend(pack_made(number, event, plan.operator, self.tracker.module, source))
        self.newest = number

    def of(self, node: Any) -> Maker | None:
        """The operator whose gradient this node computes, if it was seen."""
        number = node._sequence_nr()
        if is_copy_slices(node) and number in self.views:
            return self.views[number][0]
        if number < self.first:
            return None
        numbers = np.frombuffer(self.made, np.int64)[::MADE_FIELDS]
        i = int(numbers.searchsorted(number, "right"))
        del numbers  # the buffer could not grow
        if i * MADE.size >= len(self.made):
            return None
        return Maker(*MADE.unpack_from(self.made, i * MADE.size)[1:])

    def victim(self, maker: Maker, node: Any = None) -> Victim:
        """The same in words. A node of an autograd.Function has the name of that, whatever operator it began with."""
        module = next((name for name, number in self.tracker.names.numbers.items() if number == maker.module), None)
        function = function_of(node)
        if function is not None:
            source = maker.source if node._sequence_nr() in self.applied else 0
            return Victim(maker.event, f"{function}.apply", module, source)
        plans = (*self.plans.values(), *self.plans.quiet.values())
        op = next((plan.name for plan in plans if plan.operator == maker.operator), "an operator")
        return Victim(maker.event, op, module, maker.source)

    # ------------------------------------------------------------------------------------------------- writes
    def wrote(self, write: Write, written: list[tuple[Tensor, list[Any]]], args: tuple[Any, ...]) -> None:
        """A forward operator wrote these. It may be older than the clone that it made, whose node is younger."""
        (event, _, _, number, _, source), plan, _, _ = write
        maker = Maker(event, plan.operator, self.tracker.module, source)
        if self.cloned >= 0 and (at := self.clones_before(number)) is not None:
            first, *_ = MADE.unpack_from(self.made, at)
            self.made[at:at] = pack_made(first - 1, *maker)
            self.cloned = -1
        if torch.is_grad_enabled() and any(t._is_view() for t, _ in written if not t.is_inference()):
            if len(self.views) > MOST_VIEWS:
                for old in list(self.views)[: MOST_VIEWS // 2]:
                    del self.views[old]
            tags = tuple(tag for t in tensors_in(args) if (tag := self.values.tag_of(t)) is not None)
            self.views[number] = maker, tags

    def clones_before(self, number: int) -> int | None:
        """
        Where the clones that an operator dispatched for its old values begin in `made`, if the last nodes are theirs.

        One clone for `pow_`, one for each tensor of `_foreach_pow_`, whose own nodes are all older than the first of them.
        """
        at, operator = len(self.made) - MADE.size, None
        while at >= 0:
            following, event, of, _, _ = MADE.unpack_from(self.made, at)
            if (operator is None and following != number) or operator not in (None, of):
                return None
            if event == self.cloned:
                return at
            at, operator = at - MADE.size, of
        return None


def function_of(node: Any) -> str | None:
    """Name of the autograd.Function of the user's that this node belongs to. Torch makes some for its own purposes."""
    kind = getattr(type(node), "_forward_cls", None)
    return None if kind is None or kind.__module__.startswith("torch.") else str(kind.__name__)


def is_copy_slices(node: Any) -> bool:
    """Whether this node stands for an in-place operator on a view."""
    return type(node).__name__ == "CopySlices"
