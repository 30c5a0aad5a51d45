"""The line on stderr that ends a recording: what was written, what stands out, and the command to run next."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dispatchmon.writing.tally import Tally


def closing_line(
    path: Path, closing: Mapping[str, Any], tally: Tally, stopped: str | None, ops: bool, only_ops: bool
) -> str:
    """
    One line about a closed trace.

    Args:
        path: the file.
        closing: its closing statement.
        tally: what was counted while it was written.
        stopped: why recording stopped early, if it did.
        ops: whether operators were recorded: without them no write is seen.
        only_ops: whether nothing else was.
    """
    size = path.stat().st_size if path.exists() else 0
    stands_out = "no NaN or Inf" if tally.first_nonfinite is None else first_nonfinite(tally.first_nonfinite)
    if tally.undeclared:
        stands_out = f"{plural(tally.undeclared, 'undeclared write')}, {stands_out}"
    if tally.hazards:
        stands_out = f"{plural(tally.hazards, 'hazard')}, {stands_out}"
    if stopped:
        stands_out = f"{stands_out}; recording stopped: {stopped}"
    did = f"{spaced(closing['events'])} {'operators' if only_ops else 'events'} in {plural(closing['steps'], 'step')}"
    writes = f"{plural(closing['writes'], 'in-place write')}, " if ops else ""
    command = "audit" if tally.hazards else "nonfinite" if tally.first_nonfinite is not None else "summarize"
    return (
        f"dispatchmon: {did} to {path} ({size / 1e6:.1f} MB), {writes}{stands_out}. Next: dispatchmon {command} {path}"
    )


def first_nonfinite(row: dict[str, Any]) -> str:
    """Where the first NaN or Inf was seen, in a few words."""
    where = f" in {row['module']}" if row["module"] else ""
    return f"first {'NaN' if row['nan'] else 'Inf'} in {row['op']}{where}, step {row['step']}"


def plural(n: int, what: str) -> str:
    """`1 step`, `12 345 steps`."""
    return f"{spaced(n)} {what}" if n == 1 else f"{spaced(n)} {what}s"


def spaced(n: int) -> str:
    """12 345"""
    return f"{n:,}".replace(",", " ")
