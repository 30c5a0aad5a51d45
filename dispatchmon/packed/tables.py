"""
What the integers of the hot path stand for.

While recording, whatever repeats is a number into one of these tables. A table only grows at its end; with every batch the
sink takes what is new. A table that could grow with the length of the run is forgotten from time to time: its numbers go
on, but none below `base` is used again.
"""

from __future__ import annotations

from typing import Any


class Table:
    """Items by number, in order of first sight."""

    __slots__ = ("base", "new", "size")

    def __init__(self, *first: Any) -> None:
        self.new: list[Any] = list(first)
        self.size = len(first)
        self.base = 0

    def add(self, item: Any) -> int:
        number = self.size
        self.new.append(item)
        self.size = number + 1
        return number

    def forget(self) -> None:
        """No number given so far will be used again."""
        self.base = self.size

    def take(self) -> tuple[int, list[Any]]:
        """(base, the items added since the last call)."""
        new, self.new = self.new, []
        return self.base, new

    def copy(self) -> tuple[int, list[Any]]:
        """The same, but they stay new."""
        return self.base, list(self.new)


LISTS = ("operators", "arguments", "literals", "geometries", "labels", "modules", "sources")
BUFFERS = ("contexts", "positions")


class Tables:
    """All tables of one recording."""

    MOST = 1 << 17  # items of a table that is forgotten when it grows beyond this

    def __init__(self) -> None:
        self.operators = Table()  # (name, mutation), or (name, mutation, kind) of what is no operator
        self.arguments = Table()  # (role, name, written)
        self.literals = Table("{}")  # JSON of the non-tensor arguments
        self.geometries = Table()  # (shape, stride, offset, dtype, numel)
        self.labels = Table(("cpu", ()))  # (device, ((offset, shape, name), ...))
        self.modules = Table(None)  # qualified name; None is outside every module
        self.sources = Table(None)  # (code, instruction)
        self.contexts = bytearray()  # packed, see CONTEXT of records.py
        self.positions = bytearray()  # packed, see POSITION

    def take(self) -> dict[str, Any]:
        """What was added since the last call, by table."""
        new: dict[str, Any] = {name: getattr(self, name).take() for name in LISTS}
        for name in BUFFERS:
            buffer = getattr(self, name)
            new[name] = bytes(buffer)
            buffer.clear()
        return new

    def copy(self) -> dict[str, Any]:
        """The same, but it stays new."""
        new: dict[str, Any] = {name: getattr(self, name).copy() for name in LISTS}
        return new | {name: bytes(getattr(self, name)) for name in BUFFERS}
