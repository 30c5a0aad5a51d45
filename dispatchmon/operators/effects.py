"""
What an operator does to memory, beyond what it writes: whether it keeps the old content, or reads content at all.

The tables are by operator, not by overload. They decide which writes take something from somebody (`hazards/overwrites.py`).
"""

from __future__ import annotations

from typing import Any

import torch

# Bits of `Plan.effects`.
CLONES = 1  # what an in-place operator that needs its old self dispatches first
SNAPSHOTS = 2  # gives the same memory as a tensor that does not follow gradients
CONTAINER = 4  # makes memory that is there to be filled
KEEPS_NOTHING = 8  # every element written is new
STORES = 16  # puts given content into memory
ACCUMULATES = 32  # adds given content to memory
READS_NO_CONTENT = 64  # looks at sizes only
STILL = 128  # its writes do not move version counters
LIMITS_NORMS = 256  # nn.Embedding(max_norm=...): what it is for
COMPARES = 1024  # two tensors: the result is 0, or true, where both are the same memory
UNSEEN = 512  # of a note: nobody saw the write itself

_CONTAINERS = "empty zeros new_empty new_zeros empty_like zeros_like empty_strided new_empty_strided empty_permuted"
_STORES = "copy_ index_copy_ index_put_ scatter_ masked_scatter_"
_ACCUMULATES = "add_ sub_ index_add_ scatter_add_ addmm_ baddbmm_ addcmul_ scatter_reduce_ index_reduce_"
_KEEPS_NOTHING = (
    "copy_ fill_ zero_ normal_ uniform_ random_ bernoulli_ exponential_ cauchy_ log_normal_ geometric_")  # fmt: skip
_COMPARES = "sub eq ne equal isclose allclose mse_loss l1_loss smooth_l1_loss huber_loss dist"
_READS_NO_CONTENT = (
    "empty_like zeros_like ones_like full_like rand_like randn_like randint_like new_empty new_zeros new_ones new_full "
    "new_empty_strided sym_size sym_numel sym_stride is_same_size record_stream resize_ set_")  # fmt: skip


def _named(names: str) -> frozenset[str]:
    return frozenset(f"aten::{name}" for name in names.split())


BY_NAME = {
    CLONES: _named("clone"),
    SNAPSHOTS: _named("detach alias"),
    CONTAINER: _named(_CONTAINERS),
    KEEPS_NOTHING: _named(_KEEPS_NOTHING),
    STORES: _named(_STORES),
    ACCUMULATES: _named(_ACCUMULATES),
    READS_NO_CONTENT: _named(_READS_NO_CONTENT),
    COMPARES: _named(_COMPARES),
    LIMITS_NORMS: _named("embedding_renorm_"),
}


def effects_of(schema: Any, tags: Any, undeclared: bool) -> int:
    """The bits of one overload."""
    name = schema.name
    effects = sum(bit for bit, names in BY_NAME.items() if name in names)
    aliases = [argument.alias_info for argument in schema.arguments if argument.alias_info is not None]
    writes = any(alias.is_write for alias in aliases)
    if any(argument.is_out for argument in schema.arguments):
        effects = (effects | KEEPS_NOTHING | STORES) & ~CONTAINER
    if torch.Tag.inplace_view in tags:
        effects |= READS_NO_CONTENT
    if aliases and not writes:  # views
        effects |= READS_NO_CONTENT
    if undeclared or name.startswith(("aten::_fused_", "aten::_amp_")):
        effects |= STILL
    return effects
