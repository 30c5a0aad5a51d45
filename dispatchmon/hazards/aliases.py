"""`alias-overwritten`: what `detach()` or `state_dict()` gave before a write is read after it."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor

from dispatchmon.hazards.findings import Hazards, Victim, Write
from dispatchmon.hazards.histories import Histories, History
from dispatchmon.values.values import Values


class Aliases:
    """Follows what shares memory and a version counter with a tensor, but not its identity."""

    def __init__(self, values: Values, histories: Histories, hazards: Hazards) -> None:
        self.values, self.histories, self.hazards = values, histories, hazards

    def taken(self, tensor: Tensor, event: int) -> None:
        """The program detached this tensor."""
        tag = self.values.tag_of(tensor)
        if tag is not None:
            history = self.histories.of(tag)
            history.snapshot, history.written_since = event, None
            if not self.histories.name_of(tag):
                history.tensor = weakref.ref(tensor)
            self.histories.mark(tag, history)

    def wrote(self, write: Write, tensor: Tensor, tag: list[Any], history: History) -> None:
        """An operator wrote this tensor."""
        if history.snapshot >= 0 and history.written_since is None:
            reference = None if tensor is self.histories.owner(tag, history) else weakref.ref(tensor)
            history.written_since = write, self.values.entry_of(tensor), reference
            self.histories.mark(tag, history)

    def read(self, victim: Victim, tensor: Tensor, tag: list[Any], history: History) -> None:
        """An operator reads a tensor with the version counter of the one that was written: is it neither that nor its owner?"""
        if history.written_since is None or tensor._is_view() or tensor.is_inference():
            return
        write, entry, reference = history.written_since
        name = self.histories.name_of(tag)
        owner, writer = self.histories.owner(tag, history), reference() if reference is not None else None
        known = writer if owner is None else owner
        if tensor is owner or tensor is writer or known is None:
            return
        if 0 < tensor._version == known._version and (not name or tensor.shape == known.shape):
            taken_at, history.written_since, history.snapshot = history.snapshot, None, -1
            self.histories.mark(tag, history)
            self.hazards.add("alias-overwritten", write, entry, tag, victim, taken_at=taken_at)
