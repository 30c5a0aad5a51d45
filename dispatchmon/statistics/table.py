"""
The numbers of a value, and how they are computed.

Each measured value fills one row of a table of float64: count, min, max, mean, spread, L2 norm of the
finite elements, and how many are NaN, infinite, +Inf, zero. On CPU one pass of the optional C kernel does it, without the
kernel torch's reductions (`reductions.py`). On another device they are computed there and fetched later (`deferred.py`).
"""

from __future__ import annotations

import os
from contextlib import suppress
from math import prod, sqrt

import numpy as np
import numpy.typing as npt
import torch

from dispatchmon.memory.cells import MOST_MAPPED, runs_of
from dispatchmon.packed.records import TABLE_FULL, UNSUPPORTED
from dispatchmon.packed.totals import COUNT, INF, NAN, NORM, POSINF, SPREAD, TOTALS, ZERO
from dispatchmon.statistics.deferred import Deferred, is_capturing, row
from dispatchmon.statistics.kernel import native
from dispatchmon.statistics.layout import MEASURABLE, Layout
from dispatchmon.statistics.maps import map_of
from dispatchmon.statistics.reductions import merged, pieces
from dispatchmon.torch_internals import address_of, kernels_only


class Statistics:
    """
    Tables of measured values, one per batch of rows; those of this batch and the one before can still be referred to.

    `measure` returns the slot of a value, a number that goes on from table to table.
    """

    def __init__(self, slots: int, backend: str | None = None) -> None:
        self.slots = slots
        self.backend = (
            backend or os.environ.get("DISPATCHMON_STATISTICS") or ("native" if native is not None else "torch")
        )
        self.kernel = native.measure if self.backend == "native" else None
        self.deferred: dict[torch.device, Deferred] = {}
        self.spoiled: list[int] = []  # slots of deferred values that turned out to hold NaN or Inf
        self.defers_all = self.backend == "deferred"  # as on another device: a switch for tests
        self.threads = torch.get_num_threads()
        self.blocks: list[tuple[int, npt.NDArray[np.float64]]] = []
        self.next = self.end = 0
        self.address = 0  # where row `slot` would be in a table that began at slot 0
        self.floor = 0  # the oldest slot whose row is still there
        self.nonfinite = 0  # NaN and infinite elements met so far
        self.cells: dict[int, bytes] = {}  # where they lie, by slot
        self.new_block()

    def new_block(self) -> None:
        """Begin a table; what was deferred must have been fetched into the one before."""
        block = np.empty((self.slots, TOTALS))
        self.next = self.end
        self.blocks = [*self.blocks[-1:], (self.next, block)]
        self.address = block.ctypes.data - self.next * TOTALS * 8
        self.end = self.next + self.slots
        self.floor = self.blocks[0][0]
        self.cells = {slot: cells for slot, cells in self.cells.items() if slot >= self.floor}

    def at(self, slot: int) -> npt.NDArray[np.float64]:
        """What was measured into a slot that is still there; waits for what is on a device."""
        self.settle()
        first, block = next(pair for pair in reversed(self.blocks) if slot >= pair[0])
        row: npt.NDArray[np.float64] = block[slot - first]
        return row

    def measure(self, tensor: torch.Tensor, layout: Layout) -> int:
        """Slot of the statistics of what lies at this place in a tensor's storage, or a reason below 0."""
        slot = self.next
        if slot == self.end:
            return TABLE_FULL
        memory = 0 if tensor.is_meta else address_of(tensor)
        if not memory or tensor.untyped_storage().nbytes() < layout.end:  # fake, or a storage that was given back
            return UNSUPPORTED
        if self.kernel is not None and layout.packed is not None and tensor.is_cpu:
            if found := self.kernel(
                self.address + slot * (TOTALS * 8), memory + layout.start, layout.packed, self.threads
            ):
                self.met_nonfinite(found, slot, tensor, layout)
        else:
            with kernels_only():
                place = layout.sizes, layout.strides, layout.start // tensor.element_size()
                if self.defers_all or not tensor.is_cpu:
                    return self.defer(slot, tensor, *place, layout.repeat)
                found = self.keep(slot, merged(pieces(tensor, *place)), layout.repeat)
            if found:
                self.met_nonfinite(found, slot, tensor, layout)
        self.next = slot + 1
        return slot

    def measure_values(self, tensor: torch.Tensor) -> int:
        """The same for a tensor whose stored values are another tensor (sparse), or whose elements must be resolved (neg)."""
        slot = self.next
        if slot == self.end:
            return TABLE_FULL
        with kernels_only():
            stored = stored_values(tensor)
            if stored is None or stored.dtype not in MEASURABLE or stored.is_meta or not readable(stored):
                return UNSUPPORTED
            if stored.is_neg():
                stored = stored.resolve_neg()
            runs, repeat = runs_of(stored.shape, stored.stride())
            sizes, strides = tuple(n for _, n in reversed(runs)), tuple(s for s, _ in reversed(runs))
            if 0 in stored.shape:
                sizes = (0,)
            place = sizes, strides, int(stored.storage_offset())
            if self.defers_all or not stored.is_cpu:
                return self.defer(slot, stored, *place, repeat)
            self.nonfinite += self.keep(slot, merged(pieces(stored, *place)), repeat)
        self.next = slot + 1
        return slot

    def defer(
        self,
        slot: int,
        tensor: torch.Tensor,
        sizes: tuple[int, ...],
        strides: tuple[int, ...],
        offset: int,
        repeat: int,
    ) -> int:
        """Have the row computed on the tensor's device; it is fetched when the table is needed, or the step ends."""
        if is_capturing(tensor):
            return UNSUPPORTED
        numbers = row(tensor, sizes, strides, offset, repeat)
        if tensor.device not in self.deferred:
            self.deferred[tensor.device] = Deferred(tensor.device, self.slots)
        self.deferred[tensor.device].put(slot, numbers)
        self.next = slot + 1
        return slot

    @property
    def waiting(self) -> bool:
        """Whether rows are on a device that were not fetched."""
        return any(device.slots for device in self.deferred.values())

    def settle(self) -> None:
        """Fetch what was deferred; slots of values that hold NaN or Inf are added to `spoiled`."""
        first, block = self.blocks[-1]
        for device in self.deferred.values():
            if device.slots:
                with kernels_only():
                    slots, rows = device.fetch(block, first)
                spoiled = rows[:, NAN] + rows[:, INF]
                self.nonfinite += int(spoiled.sum())
                self.spoiled += np.array(slots)[spoiled > 0].tolist()

    def copied(self) -> list[tuple[int, npt.NDArray[np.float64]]] | None:
        """The tables as they are, with what is on a device, for another thread; None if it came at the wrong moment."""
        with kernels_only():
            seen = [device.look() for device in self.deferred.values()]
        blocks = list(self.blocks)  # after the devices: what is fetched in between is in both
        if any(seen):
            first, block = blocks[-1]
            block = block.copy()
            for found in seen:
                if found is None or (found[0] and found[0][0] < first):
                    return None
                block[np.array(found[0], dtype=np.int64) - first] = found[1]
            blocks[-1] = first, block
        return None if None in seen else blocks

    def met_nonfinite(self, found: int, slot: int, tensor: torch.Tensor, layout: Layout) -> None:
        """Count the elements, and note where they lie. Only values that hold some pay for this."""
        self.nonfinite += found
        if prod(layout.sizes) <= MOST_MAPPED:
            with suppress(Exception), kernels_only():
                first, block = self.blocks[-1]
                _, _, _, _, _, _, nan, infinite, posinf, _ = block[slot - first].tolist()
                values = tensor.as_strided(layout.sizes, layout.strides, layout.start // tensor.element_size())
                self.cells[slot] = map_of(values, nan > 0, posinf > 0, infinite > posinf)

    def keep(self, slot: int, totals: list[float], repeat: int) -> int:
        """Write a row of the table; how many NaN and infinite elements it counts."""
        if repeat != 1:
            for i in (COUNT, NAN, INF, POSINF, ZERO):
                totals[i] *= repeat
            for i in (SPREAD, NORM):
                totals[i] *= sqrt(repeat)
        first, block = self.blocks[-1]
        block[slot - first] = totals
        return int(totals[NAN] + totals[INF])


def readable(tensor: torch.Tensor) -> bool:
    """Whether a strided tensor has its elements in memory."""
    return tensor.numel() == 0 or address_of(tensor) != 0


def stored_values(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor that holds the elements of a sparse or negated one; None for kinds without ordinary elements."""
    if tensor.is_quantized or tensor.is_mkldnn or tensor.is_nested:
        return None
    if tensor.layout == torch.sparse_coo:
        return tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc):
        return tensor.values()
    return tensor if tensor.layout == torch.strided else None
