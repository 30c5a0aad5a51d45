"""
Where each operator belongs: from the contexts and positions of a batch to rows.

A context is a module call in a step; a position says from which autograd number on nodes were made in it. So the node that
runs in backward leads to the context of its forward operator, and to that operator.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dispatchmon.packed import records as r
from dispatchmon.writing.columns import Ints

# Autograd numbers and contexts that are remembered, together 48 MB; older nodes have no forward event any more.
MOST_NODES = 1 << 19


class KnownContexts:
    """The contexts, positions and nodes of a recording, as far as they are remembered."""

    def __init__(self) -> None:
        self.packed: Ints = np.empty((0, r.CONTEXT_FIELDS), np.int64)  # see CONTEXT of packed/records.py
        self.base = 0  # number of the first that is remembered
        self.positions: Ints = np.empty((0, r.POSITION_FIELDS), np.int64)
        self.nodes: Ints = np.empty((0, 3), np.int64)  # number, event, source: the operators that made a node

    def learn(self, contexts: Ints, positions: Ints) -> None:
        """Take in those of a batch."""
        self.packed = np.concatenate((self.packed, contexts))
        self.positions = np.concatenate((self.positions, positions))[-MOST_NODES:]

    def forget(self) -> None:
        """Drop the oldest when there are too many."""
        if (excess := len(self.packed) - MOST_NODES) > 0:
            self.packed, self.base = self.packed[excess:], self.base + excess

    def note_nodes(self, event: Ints, number: Ints, source: Ints) -> None:
        """The first operator after a new autograd number is the one that made the node."""
        last = self.nodes[-1, 0] if len(self.nodes) else -1
        highest = np.maximum.accumulate(np.concatenate(([last], number)))
        made = np.flatnonzero(np.diff(highest) > 0)
        source = source & ~r.OWN
        self.nodes = np.concatenate((self.nodes, np.stack((number[made], event[made], source[made]), axis=1)))[
            -MOST_NODES:
        ]

    def of(self, context: Ints, node: Ints, source: Ints) -> tuple[Ints, Ints, Ints, npt.NDArray[np.bool_], Ints]:
        """
        Per event: the context that says its module, its phase, its forward event, whether that is known, its source.

        The source is that of the forward operator, but for code of the user that runs in backward.
        """
        own, source = source >= r.OWN, source & ~r.OWN
        foreign = node <= r.FOREIGN
        recomputed = (node <= r.RECOMPUTED) & ~foreign
        backward = node >= 0
        made = np.where(recomputed, r.RECOMPUTED - node, node)
        context = context - self.base
        phase = np.where(node == r.LIVE, self.packed[context, 4], np.where(recomputed, r.RECOMPUTE, r.BACKWARD))

        found = np.searchsorted(self.nodes[:, 0], made, "right")
        known = backward & (found < len(self.nodes))
        if len(self.nodes):
            known &= made >= self.nodes[0, 0] - 1
            at = np.where(known, found, 0)
            forward_event = np.where(known, self.nodes[at, 1], -1)
            source = np.where(known & ~own, self.nodes[at, 2], source)
        else:
            forward_event = np.full(len(node), -1)

        place = context
        if len(self.positions):
            position = np.maximum(np.searchsorted(self.positions[:, 0], made, "right") - 1, 0)
            there = np.maximum(self.positions[position, 1] - self.base, 0)
            outside = recomputed & (self.packed[context, 1] < 0)  # the region called no module yet
            place = np.where(backward | outside, there, context)
        if foreign.any():
            place = np.where(foreign, r.FOREIGN - node - self.base, place)
        return place, phase, forward_event, known, source
