"""Custom operators whose schema declares no write, and that write all the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from dispatchmon.hazards.saved_values import SavedValues
from dispatchmon.module_tracker import ModuleTracker
from dispatchmon.operators.plan import Plan
from dispatchmon.operators.plans import Plans
from dispatchmon.packed.records import ROW, VERSION_BITS, Pending
from dispatchmon.values.tags import VALUE
from dispatchmon.values.values import Values

Versions = list[tuple[Tensor, int]]


def versions_of(args: Any, kwargs: Any) -> Versions:
    """Version counters before an operator runs; -1 of an inference tensor, which has none."""
    return [(t, -1 if t.is_inference() else t._version) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]


class Lies:
    """Corrects what was recorded of an operator once it turns out to have written."""

    def __init__(self, plans: Plans, values: Values, tracker: ModuleTracker, saved: SavedValues) -> None:
        self.plans, self.values, self.tracker, self.saved = plans, values, tracker, saved

    def found(self, plan: Plan, func: Any, before: Versions, pending: Pending) -> Plan:
        """If a version counter moved: mark the rows of the event, and make its values stale. The plan of such a call."""
        moved = [t for t, version in before if version >= 0 and t._version != version]
        if not moved:
            return plan
        by_serial: dict[int, Tensor] = {}
        for tensor in moved:
            if (tag := self.values.tag_of(tensor)) is not None:
                by_serial.setdefault(tag[VALUE] >> VERSION_BITS, tensor)
        written: list[tuple[Tensor, int]] = []
        rows, at = self.values.rows, len(self.values.rows) - ROW.size
        while at >= 0:
            event, argument, geometry, value, label, slot = ROW.unpack_from(rows, at)
            if event != pending[0]:
                break
            if value >> VERSION_BITS in by_serial:
                before_number, after_number = self.plans.lied_about(func, argument)
                ROW.pack_into(rows, at, event, before_number, geometry, value, label, slot)
                written.append((by_serial[value >> VERSION_BITS], after_number))
            at -= ROW.size
        plan = replace(plan, operator=self.plans.liar(func)[0], moves_values=True)
        write = pending, plan, self.tracker.path, -1
        for tensor, argument in reversed(written):
            self.values.wrote(tensor, argument, pending[0], write)
        seen = [tensor for tensor, _ in written]
        for tensor in moved:
            if not any(tensor is one for one in seen):
                self.values.written(tensor)
        self.saved.wrote(pending[3])
        return plan
