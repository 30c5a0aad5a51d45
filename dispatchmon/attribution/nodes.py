"""What the node column says of an operator in backward: how the node that runs leads to its forward operator."""

from __future__ import annotations

from typing import Any

from dispatchmon.attribution.other_threads import FOREIGN_KEY, OtherThreads
from dispatchmon.packed.records import ACCUMULATE, CALLBACK, FOREIGN, RECOMPUTED
from dispatchmon.torch_internals import NOT_NUMBERED, graph_task, recomputing, running_node
from dispatchmon.values.tags import LABEL
from dispatchmon.values.values import Values

# How an autograd node leads to its forward operator, by the name of its type.
ORDINARY, ONE_LATE, REENTRANT = range(3)
NODE_KINDS = {"CopySlices": ONE_LATE, "CheckpointFunctionBackward": REENTRANT}


class BackwardNodes:
    """Autograd nodes to the integers of the node column (packed/records.py)."""

    def __init__(self, values: Values, threads: OtherThreads) -> None:
        self.values, self.threads = values, threads
        self.kinds: dict[type, int] = {}

    def number(self, node: Any) -> int:
        """Of an operator that runs under this node: mostly the number that leads to its forward operator."""
        if node is None:
            return CALLBACK
        kind = self.kinds.get(type(node))
        if kind is None:
            kind = self.kinds[type(node)] = NODE_KINDS.get(type(node).__name__, ORDINARY)
        if self.threads.calls and (context := node.metadata.get(FOREIGN_KEY)) is not None:
            return FOREIGN - int(context)
        number: int = node._sequence_nr()
        if number == NOT_NUMBERED:
            variable = node.variable
            tag = self.values.tag_of(variable)
            name = None if tag is None else self.values.name_of(variable)
            if tag is None or name is None:
                return ACCUMULATE
            label = self.values.labels.named(tag[LABEL], variable.storage_offset(), tuple(variable.shape), name)
            return ACCUMULATE - label
        if kind == REENTRANT or recomputing():
            return RECOMPUTED - number
        return number - 1 if kind == ONE_LATE else number

    def phase(self, optimizing: bool) -> str:
        """The phase of what runs now."""
        if graph_task() != -1:
            return "recompute" if FOREIGN < self.number(running_node()) <= RECOMPUTED else "backward"
        return "optimizer" if optimizing else "forward"
