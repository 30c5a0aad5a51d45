"""`parameter-write`: a forward without gradients wrote where autograd would have refused with gradients."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from dispatchmon.hazards.findings import PENDING, PLAN, Hazards, Write
from dispatchmon.hazards.frames import initialising
from dispatchmon.hazards.histories import Histories
from dispatchmon.hazards.lines import borrowed
from dispatchmon.operators.effects import KEEPS_NOTHING, LIMITS_NORMS
from dispatchmon.values.tags import HISTORY
from dispatchmon.values.values import Values


class ParameterWrites:
    """Judges writes to parameters by how the writer got hold of them."""

    def __init__(self, values: Values, histories: Histories, hazards: Hazards) -> None:
        self.values, self.histories, self.hazards = values, histories, hazards

    def crosses(self, value: Any, call: int) -> None:
        """A parameter that is an argument or a result of a module, in this outermost call."""
        if isinstance(value, Tensor) and (tag := self.values.tag_of(value)) is not None:
            self.tag_crosses(tag, call)

    def tag_crosses(self, tag: list[Any], call: int) -> None:
        """The same, of the tag of its memory."""
        if self.histories.name_of(tag):
            self.histories.of(tag).crossed = call

    def wrote(self, write: Write, name: str, tensor: Tensor, tag: list[Any], call: int) -> None:
        """A parameter is written in a forward without gradients."""
        history = tag[HISTORY]
        owner = self.histories.owner(tag, history)
        if owner is None or not owner.requires_grad or write[PLAN].effects & LIMITS_NORMS:
            return
        crossed = history is not None and history.crossed == call
        astray = (tensor is owner and (crossed or self.under_another_name(write))) or tensor._base is owner
        if astray and not initialising():
            self.hazards.add("parameter-write", write, self.values.entry_of(tensor), tag, None, parameter=name)

    def under_another_name(self, write: Write) -> bool:
        """Whether the line changes a name that it took from the module: `w = self.weight; w += 1`, not `self.weight.mul_()`."""
        sources = self.hazards.sources
        line = None if sources is None else sources.instruction(write[PENDING][5])
        return line is not None and not write[PLAN].effects & KEEPS_NOTHING and borrowed(*line)
