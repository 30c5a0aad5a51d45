"""What is known of a storage beyond its values: who wrote over it what somebody else may still read."""

from __future__ import annotations

import weakref
from types import CodeType
from typing import Any, NamedTuple

from torch import Tensor, nn

from dispatchmon.hazards.findings import PATH, PENDING, PLAN, Write
from dispatchmon.memory.regions import Region
from dispatchmon.values.labels import Labels
from dispatchmon.values.tags import EPOCH, HISTORY, LABEL


class Overwrite(NamedTuple):
    """A write over what somebody else gave: a finding as soon as they read it again."""

    by: str  # module, function, or name: handed back, but the old name is in use
    write: Write
    entry: Any
    argument: str
    region: Region
    made_by: int | None  # of a function: number of the argument's node; another one since: it was declared dirty
    old: tuple[CodeType, int, Any] | None = None  # of a name: the caller, its call, later loads of the name
    lines: tuple[int, ...] = ()  # of a module: every line that wrote

    @property
    def place(self) -> tuple[int, str | None, int]:
        """The operator, module and line that wrote."""
        return self.write[PLAN].operator, self.write[PATH], self.write[PENDING][5]


class History:
    """What is known of one storage."""

    __slots__ = (
        "container", "copies", "crossed", "overwrites", "snapshot", "taken_at", "tensor", "told", "trained", "written_since",
    )  # fmt: skip

    def __init__(self) -> None:
        self.overwrites: list[Overwrite] = []
        self.container = False  # made empty or zero, and only stored and accumulated into since
        self.snapshot = -1  # event of the newest detach
        self.taken_at = 0  # the line of that
        self.copies: tuple[weakref.ref[Tensor], ...] = ()  # what was detached from the tensor that is trained
        # (write, entry, weak reference to the tensor): the last write to a leaf that is trained and shares this memory
        self.trained: tuple[Write, Any, weakref.ref[Tensor]] | None = None
        self.told = -1  # event of the last such write that is a finding
        self.tensor: Any = None  # weak reference to what was detached last
        # (write, entry, weak reference to the written tensor): the first write after the snapshot
        self.written_since: tuple[Write, Any, weakref.ref[Tensor] | None] | None = None
        self.crossed = -1  # outermost call in which the parameter itself was an argument or a result


class Histories:
    """
    The histories of storages, each in the tag of its memory; and whose parameters they are.

    Args:
        labels: the names of memory.
        owned: (module, key) of the parameters and buffers of the model, by name.
    """

    def __init__(self, labels: Labels, owned: dict[str, tuple[weakref.ref[nn.Module], str]]) -> None:
        self.labels, self.owned = labels, owned

    @staticmethod
    def of(tag: list[Any]) -> History:
        """The history of this memory, begun if there is none."""
        history: History | None = tag[HISTORY]
        if history is None:
            history = tag[HISTORY] = History()
        return history

    def set_overwrites(self, tag: list[Any], overwrites: list[Overwrite]) -> None:
        """What was written over in this memory."""
        history = self.of(tag)
        history.overwrites = overwrites
        self.mark(tag, history)

    @staticmethod
    def mark(tag: list[Any], history: History) -> None:
        """From now on reads of this memory matter, or no longer: an inverted epoch takes `Values.see` off the fast road."""
        matters = bool(history.overwrites or history.written_since or history.trained)
        if matters != (tag[EPOCH] < 0):
            tag[EPOCH] = ~tag[EPOCH]

    def name_of(self, tag: list[Any]) -> str | None:
        """The name of the parameter or buffer whose memory this is."""
        if not tag[LABEL]:
            return None
        return next((n for _, _, n in self.labels.items[tag[LABEL]][1] if n in self.owned), None)

    def owner(self, tag: list[Any], history: History | None) -> Any:
        """The parameter or buffer itself, or of other memory what was detached last."""
        name = self.name_of(tag)
        if name is not None:
            module, key = self.owned[name][0](), self.owned[name][1]
            if module is None:
                return None
            parameter = module._parameters.get(key)
            return parameter if parameter is not None else module._buffers.get(key)
        return history.tensor() if history is not None and history.tensor is not None else None
