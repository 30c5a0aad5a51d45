"""The events of the batch that is being filled, and when it is full."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count


class EventBuffer:
    """
    Where events are packed, by the dispatch mode and by whoever records something that is no operator.

    The rows of an event are added before the event itself, so an event that is here has all its rows. Whoever adds one asks
    `due` afterwards whether the batch is to be handed over.
    """

    def __init__(self) -> None:
        self.packed = bytearray()  # see EVENT of records.py
        self.add = self.packed.extend
        self.next_number = count().__next__
        self.idle = False  # nothing is recorded: a step that was not asked for, a forked child, a failed sink
        self.full = 1 << 62  # bytes of rows, and a time in ns, at which `flush` is called
        self.deadline = 1 << 62
        self.flush: Callable[[], None] = lambda: None
        self.nested = 0  # operators that wait for an inner one: a batch ends only between operators
        self.own_ns = 0  # time that the monitor took for itself
