"""
`alias-overwritten`: one name was written, and another name of the same memory is read.

- What `detach()` or `state_dict()` gave before a write is read after it.
- A leaf that is trained (`x.detach().requires_grad_()`, `nn.Parameter(x)`) shares memory with `x`, which is read afterwards.
- Two names that are compared or subtracted are the same memory, which was written since: the result says nothing.
"""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor

from dispatchmon.hazards.findings import PENDING, Hazards, Victim, Write
from dispatchmon.hazards.histories import Histories, History
from dispatchmon.hazards.lines import operands_differ, statement_at
from dispatchmon.packed.records import LIVE
from dispatchmon.torch_internals import is_shared
from dispatchmon.values.geometries import region_of
from dispatchmon.values.tags import HISTORY, WRITES
from dispatchmon.values.values import Values

MOST_COPIES = 4  # detached tensors of one leaf that are known


class Aliases:
    """Follows what shares memory with a tensor, but not its identity."""

    def __init__(self, values: Values, histories: Histories, hazards: Hazards) -> None:
        self.values, self.histories, self.hazards = values, histories, hazards

    def taken(self, tensor: Tensor, event: int, source: int, copy: Any) -> None:
        """The program detached this tensor."""
        tag = self.values.tag_of(tensor)
        if tag is not None:
            history = self.histories.of(tag)
            history.snapshot, history.taken_at, history.written_since = event, source, None
            if not self.histories.name_of(tag):
                history.tensor = weakref.ref(tensor)
            if tensor.requires_grad and not tensor._is_view() and tensor.is_leaf and isinstance(copy, Tensor):
                history.copies = (*history.copies[1 - MOST_COPIES :], weakref.ref(copy))
            self.histories.mark(tag, history)

    def trained(self, write: Write, tensor: Tensor, tag: list[Any]) -> None:
        """A leaf is written for the first time: if somebody else has its memory, that matters."""
        if is_shared(tensor) and not tensor._is_view():
            history = self.histories.of(tag)
            history.trained = write, self.values.entry_of(tensor), weakref.ref(tensor)
            self.histories.mark(tag, history)

    def wrote(self, write: Write, tensor: Tensor, tag: list[Any], history: History) -> None:
        """An operator wrote this tensor."""
        if history.snapshot >= 0 and history.written_since is None:
            reference = None if tensor is self.histories.owner(tag, history) else weakref.ref(tensor)
            history.written_since = write, self.values.entry_of(tensor), reference
            self.histories.mark(tag, history)
        if history.trained is not None and history.trained[2]() is tensor:
            history.trained = write, *history.trained[1:]

    def read(self, victim: Victim, tensor: Tensor, tag: list[Any], history: History) -> None:
        """An operator reads a tensor with the version counter of the one that was written: is it neither that nor its owner?"""
        if tensor._is_view() or tensor.is_inference():
            return
        if history.trained is not None and self.is_original(tensor, tag, history):
            write, entry, _ = history.trained
            if history.told == write[PENDING][0]:
                return
            history.told = write[PENDING][0]
            self.hazards.add("alias-overwritten", write, entry, tag, victim, trained=True, taken_at=self.taken_line(history))
        if history.written_since is None:
            return
        write, entry, reference = history.written_since
        name = self.histories.name_of(tag)
        owner, writer = self.histories.owner(tag, history), reference() if reference is not None else None
        known = writer if owner is None else owner
        if tensor is owner or tensor is writer or known is None:
            return
        if 0 < tensor._version == known._version and (not name or tensor.shape == known.shape):
            history.written_since, history.snapshot = None, -1
            self.histories.mark(tag, history)
            self.hazards.add("alias-overwritten", write, entry, tag, victim, taken_at=self.taken_line(history))

    def taken_line(self, history: History) -> str | None:
        """Where the program detached, and the line itself."""
        sources = self.hazards.sources
        line = sources.instruction(history.taken_at) if sources is not None and history.taken_at else None
        text = None if line is None else statement_at(*line)
        return self.hazards.line(history.taken_at) if not text else f"{self.hazards.line(history.taken_at)} (`{text}`)"

    @staticmethod
    def is_original(tensor: Tensor, tag: list[Any], history: History) -> bool:
        """Whether this is what a trained leaf shares its memory with, and not a name that was made of the leaf."""
        leaf = history.trained[2]() if history.trained is not None else None
        return (
            leaf is not None
            and tensor is not leaf
            and not tensor.requires_grad
            and tensor._version == leaf._version
            and tensor.shape == leaf.shape
            and tensor.storage_offset() == leaf.storage_offset()
            and not any(copy() is tensor for copy in history.copies)
        )

    def compared(self, args: tuple[Any, ...], victim: Victim) -> None:
        """Two tensors are compared: are they one, which was written since it had two names?"""
        one, other = args[:2]
        if not (isinstance(one, Tensor) and isinstance(other, Tensor)) or one.numel() != other.numel():
            return
        tag = self.values.tag_of(one)
        if tag is None or tag is not self.values.tag_of(other) or region_of(one) != region_of(other):
            return
        line = self.hazards.sources.instruction(victim.source) if self.hazards.sources is not None else None
        if tag[HISTORY] is not None and tag[HISTORY].told >= 0:
            return  # told by `read`
        written = [write for write, _, _ in tag[WRITES] or () if write[PENDING][4] == LIVE]
        if written and line is not None and operands_differ(*line):
            self.hazards.add("alias-overwritten", written[-1], self.values.entry_of(one), tag, victim, compared=True)
