"""
Digests of values, to find writes that no operator declares: through numpy, ctypes, or a custom operator that lies.

The bytes between a tensor's first and last element are digested when the value is made and whenever it is used again. A
change without a write in between is a finding, named by the two events around it.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
import xxhash
from torch import Tensor

from dispatchmon.torch_internals import address_of, kernels_only

PIECE = 1 << 20  # bytes at a time where a digest is computed by torch


def extent(tensor: Tensor) -> int:
    """Number of bytes from a tensor's first element up to the end of its last one."""
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def digest(tensor: Tensor) -> int | None:
    """64 bits of the bytes a strided tensor spans; None if it has no memory to look at."""
    if tensor.is_meta or 0 in tensor.shape:
        return None
    memory = address_of(tensor)
    if not memory:
        return None
    size, pointer = extent(tensor), memory + int(tensor.storage_offset()) * tensor.element_size()
    if tensor.is_cpu:
        return xxhash.xxh3_64_intdigest((ctypes.c_char * size).from_address(pointer))
    return digest_by_torch(tensor, size)


def digest_by_torch(tensor: Tensor, size: int) -> int:
    """
    The same on any device: a polynomial in the bytes, modulo 2**64, in pieces.

    Each byte is multiplied by an odd number that depends on its place, so order matters; one number leaves the device.
    """
    with kernels_only():
        flat = torch.empty(0, dtype=torch.uint8, device=tensor.device)
        flat = flat.set_(tensor.untyped_storage(), int(tensor.storage_offset()) * tensor.element_size(), (size,), (1,))
        total = 0
        for start in range(0, size, PIECE):
            piece = flat[start : start + PIECE].to(torch.int64) + 1
            place = torch.arange(start, start + piece.numel(), dtype=torch.int64, device=tensor.device)
            place = (place * 0x5851F42D4C957F2D + 0x14057B7EF767814F) ^ (place << 17)
            total += int((piece * (2 * place + 1)).sum())
        return total & (2**64 - 1)


class Digests:
    """What the bytes of each value were when an event last saw them. Kept in the tag of the storage, under DIGESTS."""

    def __init__(self, place: int) -> None:
        self.place = place
        self.findings: list[tuple[int, int, int]] = []  # event before, event after, serial of the storage

    def check(self, tag: list[Any], memory: int, tensor: Tensor, event: int) -> tuple[int | None, bool]:
        """The digest now, and whether the value changed since it was last seen."""
        now = digest(tensor)
        known = tag[self.place]
        changed = False
        if known is None:
            known = tag[self.place] = {}
        elif memory in known and known[memory][0] != now:
            self.findings.append((known[memory][1], event, tag[0] >> 32))
            known.clear()
            changed = True
        known[memory] = now, event
        return now, changed
