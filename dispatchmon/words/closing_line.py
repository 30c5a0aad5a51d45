"""The line on stderr that ends a recording: what was written, what stands out, and the command to run next."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dispatchmon.words.figures import count, counted, size

NOTHING = "no NaN or Inf"


def closing_line(
    path: Path,
    n_bytes: int,
    closing: Mapping[str, Any],
    nonfinite: str,
    alarm: bool,
    stopped: str | None,
    ops: bool,
    only_ops: bool,
) -> str:
    """
    One line about a closed trace.

    Args:
        path: the file.
        n_bytes: its size.
        closing: its closing statement.
        nonfinite: what is to be said of NaN and Inf.
        alarm: whether that is to be looked into.
        stopped: why recording stopped early, if it did.
        ops: whether operators were recorded: without them no write is seen.
        only_ops: whether nothing else was.
    """
    stands_out = nonfinite
    if undeclared := closing["undeclared_writes"]:
        stands_out = f"{counted(undeclared, 'undeclared write')}, {stands_out}"
    if hazards := closing["hazards"]:
        stands_out = f"{counted(hazards, 'hazard')}, {stands_out}"
    if stopped:
        stands_out = f"{stands_out}; recording stopped: {stopped}"
    did = f"{count(closing['events'])} {'operators' if only_ops else 'events'} in {counted(closing['steps'], 'step')}"
    writes = f"{counted(closing['writes'], 'in-place write')}, " if ops else ""
    command = "audit" if hazards else "nonfinite" if alarm else "summarize"
    return f"dispatchmon: {did} to {path} ({size(n_bytes)}), {writes}{stands_out}. Next: dispatchmon {command} {path}"


def seen_first(row: Mapping[str, Any]) -> str:
    """Where the first NaN or Inf was seen, in a few words; without operators it cannot be followed."""
    where = f" in {row['module']}" if row["module"] else ""
    return f"{'NaN' if row['nan'] else 'Inf'} first seen in {row['op']}{where}, step {row['step']}"
