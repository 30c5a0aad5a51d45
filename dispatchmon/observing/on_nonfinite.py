"""
`on_nonfinite`: the moments at which a NaN or Inf may begin to do harm, while the program runs.

At an operator nobody knows what will become of its NaN: a mask takes most of them away again. So nothing is said there. Once
one was measured anywhere, this notices when a value that holds one becomes something that matters: a loss from which
backward starts, a gradient that an optimizer is about to use, a parameter, a buffer or a state that is written. What is to be
said then, if anything, is the business of `recording/alarm.py`. Nothing is computed for it, except the number of NaN and Inf
in gradients that were not measured anyway.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor
from torch.optim.optimizer import Optimizer

from dispatchmon.observing.scaler import Scaler
from dispatchmon.operators.plan import Plan
from dispatchmon.packed.records import LIVE, ROW, ROW_FIELDS, VERSION_BITS
from dispatchmon.packed.totals import INF, NAN, POSINF
from dispatchmon.statistics.table import Statistics
from dispatchmon.torch_internals import local_part
from dispatchmon.values.tags import VALUE
from dispatchmon.values.values import Values
from dispatchmon.words.nonfinite import amount

_STARTS_BACKWARD = "ones_like"


@dataclass(frozen=True)
class Harm:
    """A moment at which a NaN or Inf may begin to do harm."""

    where: str  # `the loss from which backward starts holds 1 NaN`
    certain: bool = False  # that it does harm, whoever made it
    gradients: frozenset[int] = frozenset()  # numbers of the storages of gradients that an optimizer is about to use


class Moments:
    """
    Looks, once any NaN or Inf was measured, for the moments at which one may begin to do harm.

    Args:
        statistics: where NaN and Inf are counted.
        values: what was measured of a tensor.
    """

    def __init__(self, statistics: Statistics, values: Values) -> None:
        self.statistics, self.values = statistics, values
        self.scaler = Scaler()
        self.loss: Harm | None = None  # its gradient was begun with ones: backward may follow
        self.seen = 0  # of the NaN and Inf that were measured, at the last operator
        self.at_optimizer = 0  # the same when the optimizer began

    def operator(self, rows: bytearray, plan: Plan, pending: Any, optimizing: int) -> Harm | None:
        """An operator is over."""
        event, node = pending[0], pending[4]
        seen, self.seen = self.seen, self.statistics.nonfinite
        loss, self.loss = self.loss, None
        if node != LIVE:
            return loss
        if optimizing:
            return None
        if _STARTS_BACKWARD in plan.name:
            self.loss = self.loss_of(rows, event) or loss
            return None
        return self.state_of(rows, event, plan) if self.seen != seen else None

    def loss_of(self, rows: bytearray, event: int) -> Harm | None:
        """The loss whose gradient is begun, if it is not finite."""
        for _, geometry, _, _, slot in reversed(self.rows_of(rows, event)):
            counts = self.counts(slot)
            if any(counts.values()) and geometry is not None:
                if not counts["n"] and self.scaler.at_work():
                    return None  # the scale may be too large for it: then the step is skipped
                return Harm(f"the loss from which backward starts holds {amount(counts)}", certain=counts["n"] > 0)
        return None

    def state_of(self, rows: bytearray, event: int, plan: Plan) -> Harm | None:
        """A parameter or a buffer that was written and is not finite."""
        written = {argument for _, _, argument in plan.writes if isinstance(argument, int)}
        for argument, _, _, label, slot in self.rows_of(rows, event):
            names = self.values.labels.items[label][1]
            if argument in written and slot >= 0 and any(not name.endswith(".grad") for _, _, name in names):
                counts = self.counts(slot)
                if any(counts.values()):
                    return Harm(f"`{names[-1][2]}` was written and holds {amount(counts)}")
        return None

    def spoiled(self, rows: bytearray) -> Harm | None:
        """What was measured on another device and has just been fetched: something that has a name."""
        self.seen = self.statistics.nonfinite
        slots, self.statistics.spoiled = self.statistics.spoiled, []
        if not slots:
            return None
        table = np.frombuffer(bytes(rows), np.int64).reshape(-1, ROW_FIELDS)
        for label in np.unique(table[np.isin(table[:, 5], slots), 4]).tolist():
            if names := self.values.labels.items[label][1]:
                return Harm(f"`{names[-1][2]}` is not finite")
        return None

    # ------------------------------------------------------------------------------------------------- an optimizer
    def before_optimizer(self, optimizer: Optimizer, has_closure: bool) -> Harm | None:
        """An optimizer is about to use gradients that are not finite."""
        self.at_optimizer = self.statistics.nonfinite
        if not self.at_optimizer or has_closure or not uses_its_gradients(optimizer):
            return None
        bad = [(p, counts) for p in parameters_of(optimizer) if (counts := self.gradient_counts(p)) is not None]
        if not bad:
            return None
        storages = frozenset(self.storage(p.grad) for p, _ in bad if p.grad is not None)
        name = self.values.name_of(local_part(bad[0][0])) or "a parameter"
        return Harm(f"the gradient of `{name}`, which the optimizer is about to use, holds {amount(bad[0][1])}", True, storages)

    def after_optimizer(self, optimizer: Optimizer) -> Harm | None:
        """An optimizer has stepped, and met NaN or Inf."""
        if self.statistics.nonfinite == self.at_optimizer:
            return None
        for parameter in parameters_of(optimizer):
            counts = self.counts_of(parameter)
            if counts is not None and counts["n"]:
                name = self.values.name_of(local_part(parameter)) or "a parameter"
                return Harm(f"`{name}` holds {amount(counts)} after the optimizer's step", certain=True)
        return Harm("the optimizer's step met values that are not finite")

    def gradient_counts(self, parameter: Tensor) -> dict[str, int] | None:
        """How many NaN and Inf the gradient holds; None if none, or if that is not known."""
        counts = None if parameter.grad is None else self.counts_of(parameter.grad)
        return counts if counts is not None and any(counts.values()) else None

    # ------------------------------------------------------------------------------------------------- what was measured
    def counts_of(self, tensor: Tensor) -> dict[str, int] | None:
        """How many NaN, +Inf and -Inf a tensor holds; None if that cannot be known."""
        local = local_part(tensor)
        tag = self.values.tag_of(local)
        if tag is None:
            return None
        try:
            _, memory, layout, _ = self.values.entry_of(local)
            slot = self.values.slot_of(tag, memory, layout, local)
        except Exception:  # sparse, nested: nobody knows
            return None
        return self.counts(slot)

    def counts(self, slot: int) -> dict[str, int]:
        """How many NaN, +Inf and -Inf were counted into a slot."""
        if slot < self.statistics.floor:
            return {"n": 0, "p": 0, "m": 0}
        row = self.statistics.at(slot)
        nan, inf, posinf = int(row[NAN]), int(row[INF]), int(row[POSINF])
        return {"n": nan, "p": posinf, "m": inf - posinf}

    def storage(self, tensor: Tensor) -> int:
        """Number of a tensor's storage in the trace."""
        tag = self.values.tag_of(local_part(tensor))
        return -1 if tag is None else int(tag[VALUE]) >> VERSION_BITS

    @staticmethod
    def rows_of(rows: bytearray, event: int) -> list[tuple[int, int, int, int, int]]:
        """Argument, geometry, value, label and slot of each row of the last event."""
        found: list[tuple[int, int, int, int, int]] = []
        at = len(rows) - ROW.size
        while at >= 0:
            number, *row = ROW.unpack_from(rows, at)
            if number != event:
                break
            found.insert(0, tuple(row))
            at -= ROW.size
        return found


def parameters_of(optimizer: Optimizer) -> Iterable[Tensor]:
    """The parameters of an optimizer."""
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def uses_its_gradients(optimizer: Optimizer) -> bool:
    """Whether it takes them as they are: no hook of its own, no step that somebody wrote, no kernel that skips."""
    return (
        type(optimizer).__module__.startswith("torch.optim")
        and not optimizer._optimizer_step_pre_hooks
        and getattr(optimizer, "found_inf", None) is None
    )
