"""
Opening traces.
"""

from __future__ import annotations

from dataclasses import dataclass

from dispatchmon.reading.trace_files import Paths, TraceFiles, open_files


@dataclass(frozen=True)
class Trace(TraceFiles):
    """A run."""


def open_trace(paths: Paths) -> Trace:
    """Open."""
    found = open_files(paths)
    return Trace(found.files, found.notes)
