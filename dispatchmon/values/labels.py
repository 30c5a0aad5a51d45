"""Device and names of memory, as one number."""

from __future__ import annotations

from typing import Any

from dispatchmon.packed.tables import Table
from dispatchmon.values.tags import CPU


class Labels:
    """Device and names of a storage, as one number: parameters of one storage share it, each with its place in it."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.numbers: dict[Any, int] = {("cpu", ()): CPU}
        self.items: list[tuple[str, tuple[tuple[int, tuple[int, ...], str], ...]]] = [("cpu", ())]
        self.with_name: dict[tuple[int, int, tuple[int, ...], str], int] = {}  # what `named` found

    def number(self, device: str, names: tuple[tuple[int, tuple[int, ...], str], ...] = ()) -> int:
        found = self.numbers.get((device, names))
        if found is None:
            found = self.numbers[device, names] = self.table.add((device, names))
            self.items.append((device, names))
        return found

    def named(self, label: int, offset: int, shape: tuple[int, ...], name: str) -> int:
        """The label of the same memory, in which a tensor has a name."""
        key = label, offset, shape, name
        found = self.with_name.get(key)
        if found is None:
            device, names = self.items[label]
            kept = tuple(n for n in names if n[:2] != (offset, shape))
            found = self.with_name[key] = (
                label
                if len(kept) < len(names) and (offset, shape, name) in names
                else self.number(device, (*kept, (offset, shape, name)))
            )
        return found

    def name(self, label: int, offset: int, shape: tuple[int, ...]) -> str | None:
        return next((n for o, s, n in self.items[label][1] if (o, s) == (offset, shape)), None)
