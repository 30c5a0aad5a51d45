"""
How names and shapes are said to people.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches


def module_name(name: str | None) -> str:
    """Name a module in a table: the model itself has the name ``."""
    return "(outside)" if name is None else name or "(model)"


def in_module(name: str | None) -> str:
    """Say where an operator ran, within a sentence."""
    return "outside every module" if name is None else f"in {name}" if name else "in the model itself"


def shape(sizes: Sequence[int] | None) -> str:
    """Say a shape: `[8, 64, 128]`, of a scalar `[]`."""
    return "" if sizes is None else f"[{', '.join(map(str, sizes))}]"


def meant(word: str, known: Iterable[str]) -> str:
    """Say which known word a misspelt one is likely to be: ` (did you mean 'forward'?)`, or nothing."""
    near = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" (did you mean {near[0]!r}?)" if near else ""
