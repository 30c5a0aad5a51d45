"""What was measured of the value in each row."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dispatchmon.packed import records as r
from dispatchmon.packed import totals as s
from dispatchmon.schema import STATISTICS
from dispatchmon.writing.columns import Ints


def statistics_of(
    slot: Ints, blocks: list[tuple[int, npt.NDArray[np.float64]]], stats: frozenset[str]
) -> dict[str, pa.Array]:
    """The totals that were kept for each row, as the columns of the trace."""
    measured, empty = slot >= 0, slot == r.EMPTY
    if blocks and measured.any():
        first = blocks[0][0]
        table = blocks[0][1] if len(blocks) == 1 else np.concatenate([block for _, block in blocks])
        t = np.ascontiguousarray(table[np.where(measured, slot - first, 0)].T)
    else:
        t = np.zeros((s.TOTALS, len(slot)))
    counted = measured & (t[s.COUNT] > 0)
    with np.errstate(all="ignore"):
        std = t[s.SPREAD] / np.sqrt(t[s.COUNT])
    reals = {"min": t[s.MIN], "max": t[s.MAX], "mean": t[s.MEAN], "std": std, "norm": t[s.NORM]}
    counts = {"nan": t[s.NAN], "inf": t[s.INF], "posinf": t[s.POSINF], "zero": t[s.ZERO]}
    columns = {}
    for name in STATISTICS:
        if name not in stats:
            columns[name] = pa.nulls(len(slot), pa.float64() if name in reals else pa.int64())
        elif name in reals:
            columns[name] = pa.array(reals[name], mask=~(counted & np.isfinite(reals[name])))
        else:
            column = np.where(measured, counts[name], 0).astype(np.int64)
            columns[name] = pa.array(column, mask=~(measured | empty))
    return columns


def cells_of(cells: dict[int, bytes], slot: Ints) -> pa.Array:
    """Column `cells`."""
    if not cells:
        return pa.nulls(len(slot), pa.binary())
    known = np.sort(np.fromiter(cells, np.int64))
    at = np.minimum(np.searchsorted(known, slot), len(known) - 1)
    maps = pa.array([cells[each] for each in known.tolist()], pa.binary())
    return maps.take(pa.array(at, mask=known[at] != slot))


def digests_of(digests: dict[int, int], n: int) -> pa.Array:
    """Column `digest`."""
    if not digests:
        return pa.nulls(n, pa.uint64())
    return pa.array([digests.get(i) for i in range(n)], pa.uint64())
