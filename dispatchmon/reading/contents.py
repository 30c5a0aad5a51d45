"""
What is known of a batch once it was read: a later question passes over the batches that cannot matter to it.

Of a column of whole numbers that is the smallest and the largest, of one of few words which of them it has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatchmon.schema import KINDS, MUTATIONS, PHASES, ROLES

Number = int | float
Bounds = tuple[Number, Number] | None  # None: nothing but null
Known = Bounds | frozenset[str] | str
Range = tuple[int | None, int | None]  # half-open; None is no end
Within = Mapping[str, Range | frozenset[str] | npt.NDArray[np.int64]]  # a range, some words, or sorted numbers

VOCABULARY: dict[str, frozenset[str]] = {
    "kind": frozenset(KINDS), "phase": frozenset(PHASES), "mutation": frozenset(MUTATIONS), "role": frozenset(ROLES),
}  # fmt: skip

_WORDS = (*VOCABULARY, "op")
_MOST_WORDS = 1 << 9  # that are kept of one batch: real ones have some hundred operators
_ANYTHING = "anything"  # what is known of a column with more


class Test(NamedTuple):
    """Whether anybody needs a batch, by the rows of some of its columns: the others are read only then."""

    columns: tuple[str, ...]
    needs: Callable[[pa.RecordBatch], bool]


@dataclass
class Contents:
    """
    What is known of one batch.

    `checksum` is what its bytes had when it was learned, and `checked` the columns that were found in order together.
    """

    columns: dict[str, Known] = field(default_factory=dict)
    checksum: bytes | None = None
    checked: list[frozenset[str]] = field(default_factory=list)

    def learn(self, batch: pa.RecordBatch, checksum: bytes | None) -> None:
        """Learn the columns of the batch that are not known yet."""
        if checksum is None or checksum != self.checksum:
            self.columns, self.checked, self.checksum = {}, [], checksum
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if name not in self.columns:
                if name in _WORDS:
                    self.columns[name] = _words(column)
                elif pa.types.is_integer(column.type):
                    self.columns[name] = _bounds(column)

    def is_checked(self, columns: Collection[str]) -> bool:
        """Whether these columns were found in order."""
        return any(checked.issuperset(columns) for checked in self.checked)

    def may_hold(self, within: Within) -> bool:
        """Whether the batch may have a row in all of these, as far as is known."""
        return all(name not in self.columns or _meets(self.columns[name], wanted) for name, wanted in within.items())


def _meets(known: Known, wanted: Range | frozenset[str] | npt.NDArray[np.int64]) -> bool:
    if known == _ANYTHING:
        return True
    if isinstance(known, frozenset):
        return isinstance(wanted, frozenset) and not known.isdisjoint(wanted)
    if known is None:
        return False
    assert isinstance(known, tuple)
    least, most = known
    if isinstance(wanted, np.ndarray):
        return bool(np.searchsorted(wanted, least) < np.searchsorted(wanted, most, "right"))
    assert isinstance(wanted, tuple)
    start, stop = wanted
    return (start is None or most >= start) and (stop is None or least < stop)


def _bounds(column: pa.Array) -> Bounds:
    ends = pc.min_max(column).as_py()
    return None if ends["min"] is None else (ends["min"], ends["max"])


def _words(column: pa.Array) -> Known:
    found = pc.unique(column.drop_null())
    return _shared(frozenset(found.to_pylist())) if len(found) <= _MOST_WORDS else _ANYTHING


@lru_cache(maxsize=1 << 10)
def _shared(words: frozenset[str]) -> frozenset[str]:
    """The same words as one object: most batches have those of the one before."""
    return words
