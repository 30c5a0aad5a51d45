"""
The columns of a batch as numpy has them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def numbers(column: pa.Array, null: int = -1) -> Ints:
    """A column of whole numbers, with another one in the place of null."""
    found: Ints = column.fill_null(null).to_numpy(zero_copy_only=False)
    return found


def flags(column: pa.Array) -> Flags:
    """A column that is true or false, with false in the place of null."""
    return np.asarray(column.fill_null(False).to_numpy(zero_copy_only=False))


class Words:
    """A column by its distinct values, which are few: what is asked of a word is asked once."""

    def __init__(self, column: pa.Array) -> None:
        encoded = column.dictionary_encode()
        self.words, self.at = encoded.dictionary, numbers(encoded.indices)

    def matching(self, pattern: str) -> Flags:
        """Which rows have a word that the pattern is found in."""
        return self._rows(pc.match_substring_regex(self.words, pattern))

    def equal(self, *words: str) -> Flags:
        """Which rows have one of these words."""
        return self._rows(pc.is_in(self.words, pa.array(words, pa.utf8())))

    def _rows(self, of_words: pa.Array) -> Flags:
        asked = np.append(of_words.to_numpy(zero_copy_only=False).astype(bool), False)  # the last is null's
        return np.asarray(asked[self.at])
