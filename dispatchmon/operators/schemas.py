"""What the schema of an operator says of its writes, and what the few that hide one do not say.

`alias_info.is_write` is the truth to start from. A new rule about an operator goes here, or into `effects.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dispatchmon.packed.records import IN_FLIGHT, UNREADY, UNTIL_WAIT
from dispatchmon.torch_internals import moves_version_counters


@dataclass(frozen=True)
class Undeclared:
    """A write that no schema declares: the operator, the arguments written, the flag that switches it on, and why we know."""

    operator: str
    arguments: tuple[str, ...]
    flag: str | None
    reason: str


_RUNNING = ("running_mean", "running_var")
_BATCH_NORM = "updates the running statistics in place while training; the schema predates alias annotations"
_COLLECTIVE = "legacy collective: fills its first argument, the schema has no alias annotations"
UNDECLARED_WRITES = {
    u.operator: u
    for u in (
        Undeclared("aten::native_batch_norm", _RUNNING, "training", _BATCH_NORM),
        Undeclared("aten::cudnn_batch_norm", _RUNNING, "training", _BATCH_NORM),
        Undeclared("aten::miopen_batch_norm", _RUNNING, "training", _BATCH_NORM),
        Undeclared("aten::_batch_norm_impl_index", _RUNNING, "training", _BATCH_NORM),
        Undeclared("aten::batch_norm", _RUNNING, "training", _BATCH_NORM),
        Undeclared("aten::instance_norm", _RUNNING, "use_input_stats", _BATCH_NORM),
        Undeclared("aten::batch_norm_update_stats", _RUNNING, None, _BATCH_NORM),
        Undeclared("aten::batch_norm_gather_stats", _RUNNING, None, _BATCH_NORM),
        Undeclared("aten::batch_norm_gather_stats_with_counts", _RUNNING, None, _BATCH_NORM),
        *(
            Undeclared(f"c10d::{name}", (argument,), None, _COLLECTIVE)
            for name, argument in (
                ("allreduce_", "tensors"), ("allreduce_coalesced_", "tensors"), ("broadcast_", "tensors"),
                ("reduce_", "tensors"), ("allgather_", "output_tensors"), ("_allgather_base_", "output_tensor"),
                ("allgather_coalesced_", "output_lists"), ("allgather_into_tensor_coalesced_", "outputs"),
                ("reduce_scatter_", "output_tensors"), ("_reduce_scatter_base_", "output_tensor"),
                ("reduce_scatter_tensor_coalesced_", "outputs"), ("gather_", "output_tensors"),
                ("gather_into_tensor_", "output_tensor"),
                ("scatter_", "output_tensors"), ("alltoall_", "output_tensors"), ("alltoall_base_", "output"),
                ("recv_", "tensors"), ("recv_any_source_", "tensors"),
            )
        ),
        Undeclared("fsdp::all_gather_copy_in", ("all_gather_output",), None, "copies this rank's part into the whole"),
        Undeclared("inductor::resize_storage_bytes_", ("variable",), None, "resizes the storage of its argument"),
        Undeclared("inductor::accumulate_grad_", (), None, "writes the `.grad` of its argument, not the argument"),
    )
}  # fmt: skip
# Results of these are memory that nobody has written: their numbers mean nothing until something does.
UNWRITTEN = frozenset(
    f"aten::{name}" for name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided",
                                 "empty_permuted", "empty_quantized", "_efficientzerotensor")
)  # fmt: skip
# Results, by their place, that only the operator's own backward reads, and whose kernel leaves a part of them unwritten.
SCRATCH_RESULTS = {"aten::_ctc_loss": (1,)}  # log_alpha: -Inf for the unlikely, nothing beyond the end of a sequence
# These change what a tensor shows, not what the memory holds.
METADATA_ONLY = ("aten::set_", "aten::set_data", "aten::retain_grad", "aten::record_stream", "aten::requires_grad_")
OWN_NAMESPACES = ("aten", "prim", "prims", "c10d", "_c10d_functional", "_c10d_functional_autograd", "quantized")


def readiness(name: str, namespace: str) -> int:
    """Why the results of an operator mean nothing yet when it returns; 0 if they do."""
    if name in UNWRITTEN or name == "fsdp::all_gather_copy_in":  # the parts of the other ranks are not there yet
        return UNREADY
    if namespace == "c10d":
        return IN_FLIGHT
    return UNTIL_WAIT if "c10d" in namespace and not name.endswith("wait_tensor") else 0


def mutation_of(schema: Any, declared: bool, undeclared: bool) -> str:
    """The trace's word for what an operator writes."""
    if not declared:
        return "undeclared" if undeclared else "none"
    short = schema.name.rsplit("::", 1)[-1]
    if short.endswith("_") and not short.endswith("__"):
        return "inplace"
    return "out" if any(argument.is_out for argument in schema.arguments) else "other"


def is_uncounted(schema: Any, namespace: str) -> bool:
    """
    Whether nothing above a mode moves the version counters of what the operator writes.

    Operators on lists (`_foreach_add_`), those whose schema hides a write (`c10d::allgather_`) and some custom ones have no
    kernel for it: the operators inside theirs move them.
    """
    lists = any(a.alias_info is not None and a.alias_info.is_write and "List" in str(a.type) for a in schema.arguments)
    return (lists or namespace not in OWN_NAMESPACES) and not moves_version_counters(schema)
