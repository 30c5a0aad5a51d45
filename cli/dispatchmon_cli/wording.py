"""
How the command line says a number, a duration, a name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

_UNITS = (("ns", 1.0), ("µs", 1e3), ("ms", 1e6), ("s", 1e9))


def count(n: int) -> str:
    """Say a whole number: `1 240`."""
    return f"{n:,}".replace(",", " ")


def counted(n: int, noun: str) -> str:
    """Say how many: `1 write`, `1 240 writes`."""
    return f"{count(n)} {noun}" if n == 1 else f"{count(n)} {noun}s"


def number(x: float) -> str:
    """Say a measured number in four digits, and a whole one below a million in full: `41.2`, `3.1e-05`, `65504`."""
    return str(int(x)) if math.isfinite(x) and x == int(x) and abs(x) < 1e6 else f"{x:.4g}"


def duration(ns: int) -> str:
    """Say a duration in two or three digits: `850 ns`, `1.2 ms`, `75 s`, `3 min 20 s`, `2 h 5 min`."""
    if ns >= 3600e9:
        return f"{ns // 3_600_000_000_000} h {ns // 60_000_000_000 % 60} min"
    if ns >= 120e9:
        return f"{ns // 60_000_000_000} min {ns // 1_000_000_000 % 60} s"
    unit, size = next((u for u in reversed(_UNITS) if ns >= u[1]), _UNITS[0])
    value = ns / size
    return f"{value:.1f} {unit}" if value < 9.95 and size > 1 else f"{value:.0f} {unit}"


def size(n: int) -> str:
    """Say a size in bytes: `850 B`, `12.3 MB`."""
    if n < 1000:
        return f"{n} B"
    power = min(3, (len(str(n)) - 1) // 3)
    return f"{n / 1000**power:.1f} {' kMG'[power]}B"


def module_name(name: str | None) -> str:
    """Name a module in a table: the model itself has the name ``."""
    return "(outside)" if name is None else name or "(model)"


def in_module(name: str | None) -> str:
    """Say where an operator ran, within a sentence."""
    return "outside every module" if name is None else f"in {name}" if name else "in the model itself"


def cut_middle(text: str, width: int) -> str:
    """Shorten a name to `width` characters by its middle, since both ends of a module's name tell it apart."""
    if len(text) <= width:
        return text
    tail = width // 2
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


def printable(text: str) -> str:
    """Make what a trace says harmless for a terminal: no control character passes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shape(sizes: Sequence[int] | None) -> str:
    """Say a shape: `[8, 64, 128]`, of a scalar `[]`."""
    return "" if sizes is None else f"[{', '.join(map(str, sizes))}]"
