"""Running something under a monitor and getting its rows, for tests."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from dispatchmon import DispatchMonitor

COMPILES_UNDER_MODES = hasattr(TorchDispatchMode, "ignore_compile_internals")
needs_compilation = pytest.mark.skipif(
    not COMPILES_UNDER_MODES, reason="before torch 2.9 torch.compile compiles nothing under any dispatch mode"
)
needs_one_detach = pytest.mark.skipif(
    not COMPILES_UNDER_MODES,
    reason="before torch 2.9 autograd dispatches more detaches under two modes than under one, so a witness sees others",
)
STATISTICS = ("min", "max", "mean", "std", "norm", "nan", "inf", "posinf", "zero")
Row = dict[str, Any]


def rows_of(path: Path | str) -> list[Row]:
    """All rows of a trace, by pyarrow alone."""
    with pa.ipc.open_file(str(path)) as reader:
        return reader.read_all().to_pylist()


def until(holds: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for what another thread or process does, as long as a busy machine needs; the test then says what it did."""
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.01)


def record(run: Callable[[], Any], model: Any = None, **settings: Any) -> list[Row]:
    """The rows of what `run` did."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.arrow"
        with DispatchMonitor(model, path, quiet=True, **settings) as monitor:
            run()
        assert monitor.error is None, monitor.error
        return rows_of(path)


def events(rows: list[Row], **wanted: Any) -> list[list[Row]]:
    """The rows of each event whose first row has these values, event by event."""
    groups: dict[int, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["event"], []).append(row)
    return [g for g in groups.values() if all(g[0][k] == v for k, v in wanted.items())]


def only(rows: list[Row], **wanted: Any) -> Row:
    """The one row with these values."""
    found = [row for row in rows if all(row[k] == v for k, v in wanted.items())]
    assert len(found) == 1, f"{len(found)} rows with {wanted}"
    return found[0]


def numbers(row: Row) -> dict[str, Any]:
    """The statistics of a row."""
    return {name: row[name] for name in STATISTICS}
