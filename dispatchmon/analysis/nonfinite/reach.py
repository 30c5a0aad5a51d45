"""
Which elements of a result the elements of an argument can reach.

For most operators the learned table says that an element stays in its place (`same`). For those that mix along some
dimensions (reductions, softmax, layer norm, products, `cat`) the dimensions are among the operator's arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from dispatchmon.analysis.nonfinite.behaviour import Behaviour, element, of_argument, plain
from dispatchmon.analysis.nonfinite.rows import Event, Row
from dispatchmon.memory.cells import Mask, over

MOST_ELEMENTS = 1 << 20  # of a value that is followed element by element


def reach(event: Event, b: Behaviour | None, row: Row, mask: Mask, out: Row) -> Mask | None:
    """
    The elements of `out` that can depend on the elements of the argument `row` that are set in `mask`.

    None: any of them can. An element that the answer leaves out surely does not.
    """
    shape = out.shape or ()
    if not mask.any():
        return np.zeros(shape, bool)
    op = out.op
    if ("_foreach_" in op or "_fused_" in op) and element(out.arg) and element(row.arg) not in ("", element(out.arg)):
        return np.zeros(shape, bool)
    if of_argument(b, row.arg).same and broadcasts(mask.shape, shape):
        return np.broadcast_to(mask, shape)
    family = FAMILIES.get(op.split(".")[1].rstrip("_") if op.startswith("aten.") else "")
    try:
        found = family(event, row, mask, out) if family is not None else None
    except (ValueError, TypeError, LookupError):  # arguments that do not fit these shapes say nothing
        found = None
    if found is None or found.shape != shape:
        return None
    return found


def broadcasts(inner: Sequence[int], outer: Sequence[int]) -> bool:
    """Whether a tensor of the first shape can be expanded to the second."""
    return len(inner) <= len(outer) and all(a in (1, b) for a, b in zip(reversed(inner), reversed(outer), strict=False))


def axes(event: Event, rank: int) -> tuple[int, ...]:
    """The dimensions that the operator was told to work along; all of them by default."""
    dim = event.arguments.get("dim")
    dims = [dim] if isinstance(dim, int) and not isinstance(dim, bool) else dim
    if not isinstance(dims, list) or not dims or not all(isinstance(d, int) for d in dims):
        return tuple(range(rank))
    return tuple(d % rank for d in dims) if rank else ()


def reduced(event: Event, row: Row, mask: Mask, out: Row) -> Mask | None:
    """An element reaches the one result of its slice."""
    if plain(row.arg) not in ("self", "input"):
        return None
    found = over(mask, axes(event, mask.ndim), keepdims=True)
    shape = out.shape or ()
    return found.reshape(shape) if found.size == prod(shape) else None


def along(event: Event, row: Row, mask: Mask, out: Row) -> Mask | None:
    """An element reaches all of its slice."""
    return np.broadcast_to(over(mask, axes(event, mask.ndim), keepdims=True), mask.shape)


def onward(event: Event, row: Row, mask: Mask, out: Row) -> Mask | None:
    """An element reaches what comes after it in its slice."""
    dim = event.arguments.get("dim")
    return np.logical_or.accumulate(mask, axis=dim) if isinstance(dim, int) and mask.ndim else None


def layer_norm(event: Event, row: Row, mask: Mask, out: Row) -> Mask | None:
    """Rows are normalized each by itself."""
    normalized = tuple(range(mask.ndim - len(event.arguments.get("normalized_shape", [])), mask.ndim))
    if plain(row.arg) != "input" or not normalized:
        return None
    rows = over(mask, normalized, keepdims=True)
    return np.broadcast_to(rows, mask.shape) if out.arg in ("out0", "result") else rows


def layer_norm_backward(event: Event, row: Row, mask: Mask, out: Row) -> Mask | None:
    """The input's gradient is made row by row, those of weight and bias are sums over the rows."""
    n, shape = len(event.arguments.get("normalized_shape", [])), out.shape or ()
    if out.arg in ("out0", "grad_input"):
        if plain(row.arg) in ("grad_out", "input", "mean", "rstd"):
            normalized = tuple(range(mask.ndim - n, mask.ndim))
            rows = over(mask, normalized, keepdims=True)
            return np.broadcast_to(rows, shape) if broadcasts(rows.shape, shape) else None
        return None
    if plain(row.arg) == "grad_out" or plain(row.arg) == "input" and mask.ndim > n:
        return over(mask, tuple(range(mask.ndim - n)))
    return None


def product(event: Event, row: Row, mask: Mask, out: Row) -> Mask | None:
    """A row of the left factor reaches a row of the product, a column of the right one a column."""
    shape, arg = out.shape or (), plain(row.arg)
    adds = out.op.startswith(("aten.addmm", "aten.baddbmm"))
    if adds and arg == "self":
        return np.broadcast_to(mask, shape) if broadcasts(mask.shape, shape) else None
    left = arg in (("mat1", "batch1") if adds else ("self",))
    found = over(mask, -1 if left else -2, keepdims=True)
    return np.broadcast_to(found, shape) if broadcasts(found.shape, shape) else None


def matrix_vector(event: Event, row: Row, mask: Mask, out: Row) -> Mask | None:
    """A row of the matrix reaches one element."""
    return over(mask, -1) if plain(row.arg) in ("self", "mat") and mask.ndim == 2 else None


def joined(event: Event, row: Row, mask: Mask, out: Row) -> Mask | None:
    """The parts stand one after the other."""
    parts = [r for r in event.inputs if r.shape != (0,)]
    shape = out.shape or ()
    dim = event.arguments.get("dim", 0)
    if not isinstance(dim, int) or not shape or any(p.shape is None for p in parts):
        return None
    dim %= len(shape)
    at = next((i for i, p in enumerate(parts) if p is row), None)
    if at is None:
        return None
    if out.op.startswith("aten.stack"):
        mask, widths = np.expand_dims(mask, dim), [1] * len(parts)
    else:
        widths = [p.shape[dim] for p in parts if p.shape is not None]
    found = np.zeros(shape, bool)
    start = sum(widths[:at])
    place = found[(slice(None),) * dim + (slice(start, start + widths[at]),)]
    if place.shape != mask.shape:
        return None
    place[...] = mask
    return found


def picked(event: Event, row: Row, mask: Mask, out: Row) -> Mask | None:
    """Whole slices are picked along one dimension; which ones is not in the trace."""
    if plain(row.arg) not in ("self", "weight"):
        return None
    shape = out.shape or ()
    if out.op.startswith("aten.index_select"):
        dim = event.arguments.get("dim", 0)
        kept = over(mask, dim, keepdims=True)
    else:
        indices = [r.arg for r in event.inputs if plain(r.arg) == "indices"]
        if indices not in ([], ["indices[0]"]) or not mask.ndim:
            return None
        kept = over(mask, 0)
    return np.broadcast_to(kept, shape) if broadcasts(kept.shape, shape) else None


def batch_norm(event: Event, row: Row, mask: Mask, out: Row) -> Mask | None:
    """Channels are normalized each by itself."""
    shape = out.shape or ()
    if mask.ndim >= 2:
        kept = over(mask, (0, *range(2, mask.ndim)))
    elif mask.ndim == 1:
        kept = mask
    else:
        return None
    if len(shape) == 1 and shape == kept.shape:
        return kept
    return np.broadcast_to(kept.reshape(1, -1, *[1] * (len(shape) - 2)), shape) if len(shape) > 1 else None


Family = Callable[[Event, Row, Mask, Row], Mask | None]
FAMILIES: dict[str, Family] = {
    **dict.fromkeys(
        ("sum", "mean", "nansum", "nanmean", "var", "std", "var_mean", "std_mean", "amax", "amin", "max", "min", "prod",
         "logsumexp", "norm", "linalg_vector_norm", "aminmax", "median", "nanmedian", "mode"), reduced),
    **dict.fromkeys(
        ("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data", "softmax", "log_softmax",
         "sort", "_safe_softmax", "renorm"), along),
    **dict.fromkeys(("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin", "_cummax_helper", "_cummin_helper"), onward),
    "native_layer_norm": layer_norm, "native_layer_norm_backward": layer_norm_backward,
    **dict.fromkeys(("mm", "bmm", "addmm", "baddbmm"), product),
    "mv": matrix_vector,
    "cat": joined, "stack": joined,
    "index_select": picked, "index": picked, "embedding": picked,
    **dict.fromkeys(("native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm", "native_batch_norm_backward",
                     "_batch_norm_with_update"), batch_norm),
}  # fmt: skip
