"""
How numbers are said to people: counts, measured numbers, durations, sizes.
"""

from __future__ import annotations

import math

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


def figure(x: float) -> str:
    """
    Say a measured number as `number` does, but with more digits where four would make it seem whole.

    In a sentence about a NaN 0.99999 must not be said as 1: it is the difference that matters. In a column it may, and the
    column stays narrow.
    """
    short = number(x)
    if math.isfinite(x) and x == int(x) and abs(x) < 1e6:
        return short
    return f"{x:.9g}" if float(short) == round(x) else short


def duration(ns: int) -> str:
    """Say a duration in two or three digits: `850 ns`, `1.2 ms`, `75 s`, `3 min 20 s`, `2 h 5 min`."""
    if ns >= 3600e9:
        return f"{ns // 3_600_000_000_000} h {ns // 60_000_000_000 % 60} min"
    if ns >= 120e9:
        return f"{ns // 60_000_000_000} min {ns // 1_000_000_000 % 60} s"
    unit, length = next((u for u in reversed(_UNITS) if ns >= u[1]), _UNITS[0])
    value = ns / length
    return f"{value:.1f} {unit}" if value < 9.95 and length > 1 else f"{value:.0f} {unit}"


def size(n: int) -> str:
    """Say a size in bytes: `850 B`, `12.3 MB`."""
    if n < 1000:
        return f"{n} B"
    power = min(3, (len(str(n)) - 1) // 3)
    return f"{n / 1000**power:.1f} {' kMG'[power]}B"
