"""
How a value grew before it overflowed: the events that made it, back to where it was of ordinary size.
"""

from __future__ import annotations

from dispatchmon.analysis.nonfinite.behaviour import behaviour, reads
from dispatchmon.analysis.nonfinite.rows import Event, Row

REACH_BACK = 2000  # events before the overflow that are looked at
MOST_HOPS = 8


def growth(overflow: Event, before: list[Event]) -> list[Row]:
    """
    The results whose largest magnitude grew into the overflow, nearest first.

    Args:
        overflow: the event that made an Inf out of finite values.
        before: the events before it, in order.
    """
    makers: dict[int, list[tuple[int, Event, Row]]] = {}
    for event in before:
        b = behaviour(event.first.op)
        if b is not None and b.view:
            continue
        for row in event.outputs:
            if row.storage is not None:
                makers.setdefault(row.storage, []).append((row.version or 0, event, row))
    found: list[Row] = []
    event, size = overflow, float("inf")
    for _ in range(MOST_HOPS):
        b = behaviour(event.first.op)
        inputs = [row for row in event.inputs if row.is_float and row.magnitude is not None and reads(b, row)]
        largest = max(inputs, key=lambda row: row.magnitude or 0.0, default=None)
        if largest is None or largest.storage is None or (largest.magnitude or 0.0) > size:
            break
        known = [
            m
            for m in makers.get(largest.storage, ())
            if m[0] <= (largest.version or 0) and m[1].first.event < event.first.event
        ]
        if not known:
            break
        _, event, row = known[-1]
        if row.magnitude is None or row.nonfinite:
            break
        size = row.magnitude
        if size == 0:
            break
        found.append(row)
        if size < 100:
            break
    return found
