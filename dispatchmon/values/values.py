"""
Which value a tensor holds, and what is remembered of it.

The tag of its memory (`tags.py`) counts the writes to it and remembers the statistics of the value that it holds now. A
write through any view makes all of that stale.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dispatchmon.packed.records import (
    EMPTY,
    FAILED,
    NO_STORAGE,
    NOT_ASKED,
    ROW,
    ROW_FIELDS,
    SCRATCH,
    UNSUPPORTED,
    UNTIL_WAIT,
    VERSION_BITS,
)
from dispatchmon.packed.tables import Tables
from dispatchmon.statistics.layout import Layout
from dispatchmon.statistics.table import Statistics
from dispatchmon.torch_internals import DisableTorchFunction, kernels_only
from dispatchmon.values.digests import Digests
from dispatchmon.values.geometries import Geometries, plain_sizes
from dispatchmon.values.labels import Labels
from dispatchmon.values.tags import (
    CPU,
    DIGESTS,
    EPOCH,
    EPOCHS,
    HISTORY,
    LABEL,
    MEMORY,
    MOST_WRITES,
    OWNER,
    SERIALS,
    SLOT,
    SLOTS,
    VALUE,
    WRITES,
)

pack_row = ROW.pack


class Values:
    """Writes a row for each tensor that an event sees, with the identity and the statistics of its value."""

    def __init__(self, tables: Tables, statistics: Statistics | None, level: int, verify: bool = False) -> None:
        self.statistics = statistics
        self.digests = Digests(DIGESTS) if verify else None
        self.digest_of_rows: dict[int, int] = {}  # number of the row in this batch -> digest
        self.geometries = Geometries(tables.geometries)
        self.labels = Labels(tables.labels)
        self.rows = bytearray()
        self.add_row = self.rows.extend
        self.attribute = f"_dispatchmon_{level}"  # two nested monitors have two tags
        self.owner = self.epoch = next(EPOCHS)
        self.measuring = statistics is not None
        self.reason = NOT_ASKED  # what the slot says while not measuring
        self.table = tables.geometries
        self.changed_unseen: Callable[[list[Any], Any, int], None] = lambda tag, entry, event: None
        self.touched = False  # memory whose reads matter was seen

    def new_epoch(self) -> None:
        """Something may have run unseen: every value met from now on is a new version."""
        self.epoch = next(EPOCHS)

    # ------------------------------------------------------------------------------------------------- one tensor
    def see(self, tensor: Tensor, argument: int, event: int) -> None:
        """Add the row of one tensor as it is now."""
        try:
            storage = tensor.untyped_storage()
            geometry, memory, layout, _ = self.geometries[
                tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype
            ]
            tag = getattr(storage, self.attribute, None)
            if tag is None or tag[EPOCH] != self.epoch:
                tag = self.first_sight(storage, tensor, tag)
        except Exception:  # sparse, mkldnn, nested, symbolic: no storage, no strides
            self.see_special(tensor, argument, event)
            return
        if self.digests is not None and self.reason == NOT_ASKED and tag[SLOT] != UNTIL_WAIT:
            self.verify(self.digests, tag, memory, tensor, event)
        if not self.measuring:
            slot = EMPTY if memory == -1 and self.reason != NOT_ASKED else self.reason
            if slot == UNTIL_WAIT:
                tag[MEMORY], tag[SLOT] = -1, slot
        elif tag[MEMORY] == memory and tag[SLOT] >= self.statistics.floor and not tensor.is_neg():  # type: ignore[union-attr]
            slot = tag[SLOT]
        else:
            slot = self.slot_of(tag, memory, layout, tensor)
        self.add_row(pack_row(event, argument, geometry, tag[VALUE], tag[LABEL], slot))

    def verify(self, digests: Digests, tag: list[Any], memory: int, tensor: Tensor, event: int) -> None:
        """Note the digest of a value; if it changed unseen, it is another value now."""
        try:
            now, changed = digests.check(tag, memory, tensor, event)
        except Exception:  # a subclass without memory of its own
            return
        if now is not None:
            self.digest_of_rows[len(self.rows) // ROW.size] = now
        if changed:
            tag[VALUE] += 1
            tag[MEMORY], tag[SLOTS] = -1, None
            self.changed_unseen(tag, self.entry_of(tensor), event)

    def take_digests(self) -> tuple[dict[int, int], list[tuple[int, int, int]]]:
        """Digests of the rows of this batch, and the values that changed unseen."""
        if self.digests is None:
            return {}, []
        taken = self.digest_of_rows, self.digests.findings
        self.digest_of_rows, self.digests.findings = {}, []
        return taken

    def see_all(self, tensors: Iterable[Any], numbers: Any, event: int) -> None:
        """The same for each tensor of a list, of lists."""
        for i, tensor in enumerate(tensors):
            if isinstance(tensor, Tensor):
                self.see(tensor, numbers.at(i), event)
            elif isinstance(tensor, (list, tuple)):
                self.see_all(tensor, numbers.inside(i), event)

    def first_sight(self, storage: Any, tensor: Tensor, tag: list[Any] | None) -> list[Any]:
        """A new tag, or one from before a gap brought up to date."""
        if tag is not None and tag[OWNER] == self.owner:
            if tag[EPOCH] < 0:
                self.touched = True
                if tag[EPOCH] == ~self.epoch:
                    return tag
            tag[VALUE] += 1
            tag[MEMORY], tag[SLOTS], tag[DIGESTS] = -1, None, None
            tag[EPOCH] = ~self.epoch if tag[EPOCH] < 0 else self.epoch
            return tag
        label = CPU if tensor.is_cpu else self.labels.number(str(tensor.device))
        tag = [next(SERIALS) << VERSION_BITS, label, -1, -1, None, self.epoch, self.owner, None, None, None]
        setattr(storage, self.attribute, tag)
        return tag

    def slot_of(self, tag: list[Any], memory: int, layout: Layout | None, tensor: Tensor) -> int:
        """Where the statistics of this memory of this value are; measured now if they are nowhere."""
        statistics = self.statistics
        assert statistics is not None
        if tag[SLOT] <= UNTIL_WAIT:
            return int(tag[SLOT])
        try:
            if tensor.is_neg():
                return statistics.measure_values(tensor)  # not remembered: the memory holds the opposite
            slots = tag[SLOTS]
            slot = (tag[SLOT] if tag[MEMORY] == memory else -1) if slots is None else slots.get(memory, -1)
            if slot < statistics.floor:
                if layout is None:
                    return EMPTY if memory == -1 else UNSUPPORTED
                slot = statistics.measure(tensor, layout)
                if slot < 0:
                    return slot
                if tag[MEMORY] >= 0 and tag[MEMORY] != memory:  # a second view of the same value: both are remembered
                    tag[SLOTS] = {**(slots or {}), tag[MEMORY]: tag[SLOT], memory: slot}
        except Exception:
            return FAILED
        tag[MEMORY], tag[SLOT] = memory, slot
        return slot

    def see_special(self, tensor: Tensor, argument: int, event: int) -> None:
        """The row of a tensor without a storage or without plain sizes: what can be known of it."""
        shape: Any = None
        stride: Any = None
        offset: int | None = None
        label, slot = CPU, self.reason
        with DisableTorchFunction(), kernels_only():
            try:
                label = self.labels.number(str(tensor.device))
                shape = plain_sizes(tensor.shape) if not tensor.is_nested else None
                if tensor.layout == torch.strided and shape is not None:
                    stride, (offset,) = plain_sizes(tensor.stride()), plain_sizes((tensor.storage_offset(),))
            except Exception:  # symbolic sizes
                shape = stride = offset = None
            if self.measuring and self.statistics is not None:
                try:
                    slot = UNSUPPORTED if shape is None else self.statistics.measure_values(tensor)
                except Exception:
                    slot = FAILED
        numel = None if shape is None else torch.Size(shape).numel()
        key = shape, stride, offset, tensor.dtype
        entry = self.geometries.get(key)
        if entry is None:
            number = self.table.add((shape, stride, offset, tensor.dtype, numel))
            entry = self.geometries[key] = number, -1, None, key
        self.add_row(pack_row(event, argument, entry[0], NO_STORAGE, label, slot))

    # ------------------------------------------------------------------------------------------------- writes, names
    def tag_of(self, tensor: Tensor) -> list[Any] | None:
        """The tag of a tensor's memory, made if there is none; None for a tensor without storage."""
        try:
            storage = tensor.untyped_storage()
            tag = getattr(storage, self.attribute, None)
            return tag if tag is not None and tag[EPOCH] == self.epoch else self.first_sight(storage, tensor, tag)
        except Exception:
            return None

    def written(self, tensor: Tensor) -> None:
        """A write to this tensor: the value of its memory is another one now."""
        tag = self.tag_of(tensor)
        if tag is not None:
            self.stale(tag)

    def wrote(self, tensor: Tensor, argument: int, event: int, write: Any) -> list[Any] | None:
        """The row of a tensor after a write to it, which goes into the log of its memory; the tag of the memory."""
        try:
            storage = tensor.untyped_storage()
            entry = self.geometries[tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype]
            tag = getattr(storage, self.attribute, None)
            if tag is None or tag[EPOCH] != self.epoch:
                tag = self.first_sight(storage, tensor, tag)
        except Exception:
            self.see_special(tensor, argument, event)
            return None
        if write[1].moves_values:
            tag[VALUE] += 1
            tag[MEMORY], tag[SLOT], tag[SLOTS], tag[DIGESTS] = -1, -1, None, None
        try:
            version = tensor._version
        except RuntimeError:  # made in inference mode
            version = -1
        log = tag[WRITES]
        if log is None:
            tag[WRITES] = [(write, entry, version)]
        else:
            if len(log) >= MOST_WRITES:
                del log[: MOST_WRITES // 2]
            log.append((write, entry, version))
        if self.digests is not None and self.reason == NOT_ASKED and tag[SLOT] != UNTIL_WAIT:
            self.verify(self.digests, tag, entry[1], tensor, event)
        if self.measuring:
            slot = self.slot_of(tag, entry[1], entry[2], tensor)
        else:
            slot = EMPTY if entry[1] == -1 and self.reason != NOT_ASKED else self.reason
            if slot == UNTIL_WAIT:
                tag[MEMORY], tag[SLOT] = -1, slot
        self.add_row(pack_row(event, argument, entry[0], tag[VALUE], tag[LABEL], slot))
        return tag

    def wrote_all(
        self, tensors: Iterable[Any], numbers: Any, event: int, write: Any, forward: bool, written: list[Any]
    ) -> None:
        """The same for each tensor of a list, of lists; adds (tensor, tag) of those that must be judged to `written`."""
        for i, tensor in enumerate(tensors):
            if isinstance(tensor, Tensor):
                tag = self.wrote(tensor, numbers.at(i), event, write)
                if tag is not None and (
                    forward or tag[HISTORY] is not None or (tensor.requires_grad and len(tag[WRITES]) == 1)
                ):
                    written.append((tensor, tag))
            elif isinstance(tensor, (list, tuple)):
                self.wrote_all(tensor, numbers.inside(i), event, write, forward, written)

    def arrived(self, tensor: Tensor) -> None:
        """The collective that made this tensor is over."""
        tag = self.tag_of(tensor)
        if tag is not None:
            tag[SLOT] = -1

    def refilled(self, storage: torch.UntypedStorage) -> None:
        """A storage was freed or allocated anew: what it holds is another value."""
        tag = getattr(storage, self.attribute, None)
        if tag is not None:
            self.stale(tag)

    @staticmethod
    def stale(tag: list[Any]) -> None:
        """Memory holds another value now, of which nothing is known."""
        tag[VALUE] += 1
        tag[MEMORY], tag[SLOT], tag[SLOTS], tag[DIGESTS] = -1, -1, None, None

    def is_scratch(self, tensor: Tensor) -> None:
        """What this tensor holds means something to the kernel that made it only: it is never measured."""
        tag = self.tag_of(tensor)
        if tag is not None:
            tag[SLOT] = SCRATCH

    def written_all(self, tensors: Iterable[Any]) -> None:
        """The same for each tensor of a list, of lists."""
        for tensor in tensors:
            if isinstance(tensor, Tensor):
                self.written(tensor)
            elif isinstance(tensor, (list, tuple)):
                self.written_all(tensor)

    def entry_of(self, tensor: Tensor) -> tuple[int, int, Layout | None, Any]:
        """What is known of the tensor's place in its memory."""
        return self.geometries[tensor.shape, tensor.stride(), int(tensor.storage_offset()), tensor.dtype]

    def unknown_geometry(self) -> tuple[int, int, Layout | None, Any]:
        """The place of a tensor of which nothing is known."""
        key = None, None, None, None
        entry = self.geometries.get(key)
        if entry is None:
            entry = self.geometries[key] = self.table.add((*key, None)), -1, None, key
        return entry

    def name(self, tensor: Tensor, name: str) -> None:
        """From now on rows of this tensor carry a name."""
        tag = self.tag_of(tensor)
        if tag is not None:
            tag[LABEL] = self.labels.named(tag[LABEL], int(tensor.storage_offset()), tuple(tensor.shape), name)

    def rename_rows(self, tensors: list[Tensor], start: int) -> None:
        """Give rows that were added since `start` the names that these tensors have got meanwhile."""
        labels = {
            tag[VALUE] >> VERSION_BITS: tag[LABEL] for tensor in tensors if (tag := self.tag_of(tensor)) is not None
        }
        rows = np.frombuffer(self.rows, np.int64).reshape(-1, ROW_FIELDS)[start // ROW.size :]
        serials = rows[:, 3] >> VERSION_BITS
        for i in np.flatnonzero(np.isin(serials, list(labels))).tolist():
            rows[i, 4] = labels[int(serials[i])]

    def name_of(self, tensor: Tensor) -> str | None:
        """The name of a tensor, if it has one."""
        tag = self.tag_of(tensor)
        return None if tag is None else self.labels.name(tag[LABEL], int(tensor.storage_offset()), tuple(tensor.shape))

    def untag(self) -> None:
        """Take the tags off every storage that still lives."""
        for each in gc.get_objects():
            if type(each) is torch.UntypedStorage and hasattr(each, self.attribute):
                delattr(each, self.attribute)
