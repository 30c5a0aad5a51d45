"""What the integers of a batch stand for, as Arrow arrays that grow from batch to batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dispatchmon.packed.source_lines import described
from dispatchmon.words.harmless import storable

Ints = npt.NDArray[np.int64]


class Column:
    """A table as a growing Arrow array; what was forgotten is dropped."""

    def __init__(self, type_: pa.DataType, item: Callable[[Any], Any] = lambda item: item) -> None:
        self.item, self.type = item, type_
        self.base, self.array = 0, pa.array([], type_)

    def update(self, base: int, new: list[Any]) -> None:
        if new:
            self.array = pa.concat_arrays([self.array, pa.array([self.item(each) for each in new], self.type)])
        if base > self.base and base - self.base <= len(self.array):
            self.array, self.base = self.array.slice(base - self.base), base

    def take(self, numbers: Ints, valid: npt.NDArray[np.bool_] | None = None) -> pa.Array:
        indices = numbers - self.base
        gone = indices < 0  # forgotten: unknown by now
        return self.array.take(pa.array(indices, mask=gone if valid is None else gone | ~valid))

    def at(self, numbers: Ints) -> Any:
        return self.array.to_numpy(zero_copy_only=False)[numbers - self.base]


def text(get: Callable[[Any], Any]) -> Column:
    """A column of strings."""
    return Column(pa.utf8(), lambda item: storable(get(item)))


def columns_of_tables() -> dict[str, dict[str, Column]]:
    """By table of `packed/tables.py`, what of its items becomes part of a trace."""
    i64 = pa.int64()
    return {
        "operators": {
            "name": text(lambda o: o[0]),
            "mutation": text(lambda o: o[1]),
            "kind": text(lambda o: o[2] if len(o) > 2 else "op"),
        },
        "arguments": {
            "role": text(lambda a: a[0]),
            "name": text(lambda a: a[1]),
            "written": Column(pa.bool_(), lambda a: a[2]),
        },
        "literals": {"json": text(lambda t: t)},
        "geometries": {
            "shape": Column(pa.list_(i64), lambda g: g[0]),
            "stride": Column(pa.list_(i64), lambda g: g[1]),
            "offset": Column(i64, lambda g: g[2]),
            "dtype": text(lambda g: None if g[3] is None else str(g[3]).removeprefix("torch.")),
            "numel": Column(i64, lambda g: g[4]),
        },
        "labels": {"device": text(lambda x: x[0]), "named": Column(pa.bool_(), lambda x: bool(x[1]))},
        "modules": {"name": text(lambda m: m)},
        "sources": {"line": text(lambda c: None if c is None else described(*c))},
    }
