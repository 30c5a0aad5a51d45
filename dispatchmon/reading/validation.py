"""
The rows of a trace, checked once, where they enter: whatever comes later may rely on them.

A checksum shows that bytes have not changed since they were written. It does not show that they make sense, for a stranger
may have written them: sizes that do not multiply to the number of elements, a stride that leads out of the memory, more NaN
than elements. All checks are over whole columns at once, and only over those that are read.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatchmon.memory.cells import MOST_CELLS, cells_of
from dispatchmon.reading.contents import VOCABULARY, Contents
from dispatchmon.reading.messages import Damaged
from dispatchmon.schema import COLUMNS

Numbers = npt.NDArray[np.int64]
MOST_ELEMENTS = float(1 << 62)  # of a tensor, and between the ends of one: what an int64 can still add up

MOST_NUMBER = (1 << 63) - 1

_NEVER_NULL = tuple(c.name for c in COLUMNS if c.null is None)
_COUNTS = ("nan", "inf", "posinf", "zero")
_NATURAL = (
    *("event", "rank", "step", "micro_step", "module_call", "storage", "version", "offset", "numel", *_COUNTS),
    *("start_ns", "duration_ns", "forward_event", "cause_event"),
)


class Validator:
    """
    Checks the batches of one file in turn.

    Args:
        known: whether the words of the format are all known, which of a newer minor version they need not be.
    """

    def __init__(self, known: bool = True) -> None:
        self.known = known
        self.last = 0  # event of the last row

    def check(self, batch: pa.RecordBatch, contents: Contents) -> None:
        """
        Require a batch to hold rows that a monitor could have written, as far as its columns show.

        Args:
            batch: the batch.
            contents: what was learned of its columns.

        Raises:
            Damaged: it does not; the message says what is wrong.
        """
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        for name, column in columns.items():
            if column.null_count and name in _NEVER_NULL:
                raise Damaged(f"it has a row whose {name} is null")
            known = contents.columns.get(name)
            if name in _NATURAL and isinstance(known, tuple):
                _require_natural(name, known[0])
            elif self.known and name in VOCABULARY and not (isinstance(known, frozenset) and known <= VOCABULARY[name]):
                raise Damaged(f"it has a row whose {name} is no {name} of the format")
        if "event" in columns:
            self._require_order(columns["event"])
        _require_counts(columns)
        _require_place(columns)
        _require_maps(columns)

    def _require_order(self, column: pa.Array) -> None:
        events = column.to_numpy()
        if len(events):
            if events[0] < self.last or (events[1:] < events[:-1]).any():
                raise Damaged("its events are not in order")
            self.last = int(events[-1])


def _require_natural(name: str, least: float | None) -> None:
    if least is not None and least < 0:
        raise Damaged(f"it has a row whose {name} is {least}")


def _require_counts(columns: dict[str, pa.Array]) -> None:
    """No more elements of a kind than there are elements."""
    if "numel" not in columns:
        return
    most = _filled(columns["numel"], MOST_NUMBER)
    together: Any = 0
    for name in _COUNTS:
        if name not in columns:
            continue
        counts = _filled(columns[name], 0)
        if (counts > most).any():
            raise Damaged(f"it has a row with more {name} than elements")
        if name != "posinf":
            together = together + counts
        elif "inf" in columns and (counts > _filled(columns["inf"], 0)).any():
            raise Damaged("it has a row with more +Inf than Inf")
    if np.any(together > most):
        raise Damaged("it has a row with more NaN, Inf and zeros than elements")


def _require_place(columns: dict[str, pa.Array]) -> None:
    """Sizes and strides of a tensor that memory could hold."""
    shape, stride = columns.get("shape"), columns.get("stride")
    for name, column in (("size", shape), ("stride", stride)):
        if column is not None:
            flat = column.flatten()
            if flat.null_count:
                raise Damaged(f"it has a row with a {name} that is null")
            _require_natural(name, pc.min(flat).as_py())
    if shape is None:
        return
    sizes, lengths = shape.flatten().to_numpy(), _filled(pc.list_value_length(shape), 0)
    rows = np.flatnonzero(lengths)
    starts = (np.cumsum(lengths) - lengths)[rows]
    product = np.ones(len(shape))
    if len(rows):
        product[rows] = np.multiply.reduceat(sizes.astype(float), starts)
    if (product > MOST_ELEMENTS).any():
        raise Damaged("it has a row with more elements than memory could hold")
    if "numel" in columns:
        numel = columns["numel"]
        both = pc.and_(shape.is_valid(), numel.is_valid()).to_numpy(zero_copy_only=False)
        exact = np.ones(len(shape), np.int64)
        if len(rows):
            exact[rows] = np.multiply.reduceat(sizes, starts)
        if (_filled(numel, -1) != exact)[both].any():
            raise Damaged("it has a row whose numel is not the product of its shape")
    if stride is None:
        return
    placed = stride.is_valid().to_numpy(zero_copy_only=False)
    if (_filled(pc.list_value_length(stride), 0) != lengths)[placed].any():
        raise Damaged("it has a row with fewer strides than sizes, or more")
    if not placed.all():
        sizes = sizes[np.repeat(placed, lengths)]
        lengths = np.where(placed, lengths, 0)
        rows = np.flatnonzero(lengths)
        starts = (np.cumsum(lengths) - lengths)[rows]
    reach = _filled(columns["offset"], 0).astype(float) if "offset" in columns else np.zeros(len(shape))
    if len(rows):
        steps = np.maximum(sizes.astype(float) - 1, 0) * stride.flatten().to_numpy()
        reach[rows] += np.add.reduceat(steps, starts)
    if (reach[product > 0] > MOST_ELEMENTS).any():
        raise Damaged("it has a row whose elements lie further apart than memory is large")


def _require_maps(columns: dict[str, pa.Array]) -> None:
    """Maps of non-finite elements as large as those of such tensors are."""
    cells, shape, stride = (columns.get(name) for name in ("cells", "shape", "stride"))
    if cells is None or cells.null_count == len(cells):
        return
    lengths = _filled(pc.binary_length(cells), 1)
    if lengths.min() < 1 or lengths.max() > _map_bytes(7, MOST_CELLS):
        raise Damaged(_NO_MAP)
    if shape is None or stride is None:
        return
    mapped = cells.is_valid()
    for each, *place in zip(*(column.filter(mapped).to_pylist() for column in (cells, shape, stride)), strict=True):
        if None in place or 0 in place[0] or len(each) != _map_bytes(each[0], _cells_of(*map(tuple, place))):
            raise Damaged(_NO_MAP)


_NO_MAP = "it has a map of non-finite elements that does not fit its tensor"
_cells_of = lru_cache(1 << 10)(cells_of)


def _map_bytes(flags: int, cells: int) -> int:
    return 1 + (flags & 7).bit_count() * -(-cells // 8)


def _filled(column: pa.Array, with_: int) -> Numbers:
    """A column of whole numbers, with another one in the place of null."""
    return np.asarray(column.fill_null(with_).to_numpy(zero_copy_only=False))
