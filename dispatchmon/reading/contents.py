"""
What is known of a batch once it was read: a later question passes over the batches that cannot matter to it.

Of a column of numbers that is the smallest and the largest, of one whose words the format names which of them it has.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatchmon.schema import KINDS, MUTATIONS, PHASES, ROLES

Number = int | float
Bounds = tuple[Number, Number] | None  # None: nothing but null
Range = tuple[int | None, int | None]  # half-open; None is no end
Within = Mapping[str, Range | frozenset[str] | npt.NDArray[np.int64]]  # a range, some words, or sorted numbers

VOCABULARY: dict[str, frozenset[str]] = {
    "kind": frozenset(KINDS), "phase": frozenset(PHASES), "mutation": frozenset(MUTATIONS), "role": frozenset(ROLES),
}  # fmt: skip


@dataclass
class Contents:
    """
    What is known of one batch.

    `checksum` is what its bytes had when it was learned, and `checked` the columns that were found in order together.
    """

    columns: dict[str, Bounds | frozenset[str]] = field(default_factory=dict)
    checksum: bytes | None = None
    checked: list[frozenset[str]] = field(default_factory=list)

    def learn(self, batch: pa.RecordBatch, checksum: bytes | None) -> None:
        """Learn the columns of the batch that are not known yet."""
        if checksum is None or checksum != self.checksum:
            self.columns, self.checked, self.checksum = {}, [], checksum
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if name not in self.columns:
                if name in VOCABULARY:
                    self.columns[name] = _words(column)
                elif pa.types.is_integer(column.type):
                    self.columns[name] = _bounds(column)

    def is_checked(self, columns: Collection[str]) -> bool:
        """Whether these columns were found in order."""
        return any(checked.issuperset(columns) for checked in self.checked)

    def may_hold(self, within: Within) -> bool:
        """Whether the batch may have a row in all of these, as far as is known."""
        return all(name not in self.columns or _meets(self.columns[name], wanted) for name, wanted in within.items())


def _meets(known: Bounds | frozenset[str], wanted: Range | frozenset[str] | npt.NDArray[np.int64]) -> bool:
    if isinstance(known, frozenset):
        return isinstance(wanted, frozenset) and not known.isdisjoint(wanted)
    if known is None:
        return False
    least, most = known
    if isinstance(wanted, np.ndarray):
        return bool(np.searchsorted(wanted, least) < np.searchsorted(wanted, most, "right"))
    assert isinstance(wanted, tuple)
    start, stop = wanted
    return (start is None or most >= start) and (stop is None or least < stop)


def _bounds(column: pa.Array) -> Bounds:
    ends = pc.min_max(column).as_py()
    return None if ends["min"] is None else (ends["min"], ends["max"])


_shared: dict[frozenset[str], frozenset[str]] = {}  # few sets are met, again and again


def _words(column: pa.Array) -> frozenset[str]:
    found = frozenset(word for word in pc.unique(column).to_pylist() if word is not None)
    return _shared.setdefault(found, found) if found <= _EVERY_WORD else found


_EVERY_WORD = frozenset().union(*VOCABULARY.values())
