"""
Write a synthetic trace of many rows, to measure reading; nothing of it is committed.

    python benchmarks/make_large_trace.py PATH [ROWS]

It has the columns, batches and compression of a recorded one, and values as varied as those of a transformer's training:
400 modules, 60 operators, statistics without repetition.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa

from dispatchmon.schema import COLUMN_NAMES, FORMAT_VERSION, SCHEMA
from dispatchmon.writing.writer import TraceWriter

ROWS = 10_000_000
BATCH = 1 << 15
ROWS_OF_EVENT = 3
ROWS_OF_STEP = 60_000


def batch_of(first: int, n: int, chance: np.random.Generator) -> pa.RecordBatch:
    """Rows `first` to `first + n` of the trace."""
    row = np.arange(first, first + n)
    event, place = row // ROWS_OF_EVENT, row % ROWS_OF_EVENT
    head = place == 0
    within = row % ROWS_OF_STEP / ROWS_OF_STEP
    phase = np.searchsorted([0.35, 0.85], within, "right")
    operator = (event * 7 + event // 11) % 60
    module = (within * 400).astype(np.int64) % 400
    size = 1 << (4 + event % 8)

    def text(values: list[str | None], index: np.ndarray) -> pa.Array:
        return pa.array(values, pa.utf8()).take(pa.array(index))

    def of_head(array: pa.Array) -> pa.Array:
        return array.filter(pa.array(np.ones(n, bool))).take(pa.array(np.arange(n), mask=~head))

    two = pa.array(np.stack((size, np.full(n, 1024)), axis=1).reshape(-1))
    pairs = pa.ListArray.from_arrays(np.arange(0, 2 * n + 1, 2, dtype=np.int32), two)
    inplace = operator % 9 == 0
    bad = chance.random(n) < 1e-5
    columns = {
        "event": event,
        "kind": text(["op"], np.zeros(n, np.int64)),
        "rank": np.zeros(n, np.int32),
        "step": (row // ROWS_OF_STEP).astype(np.int32),
        "micro_step": np.zeros(n, np.int32),
        "phase": text(["forward", "backward", "optimizer"], phase),
        "module": text([f"model.layers.{i // 10}.block.part{i % 10}" for i in range(400)], module),
        "module_call": np.zeros(n, np.int32),
        "op": text([f"aten.operator{i}{'_' if i % 9 == 0 else ''}.default" for i in range(60)], operator),
        "arguments": of_head(text(["{}", '{"dim": -1}', '{"alpha": 1}'], event % 3)),
        "mutation": text(["none", "inplace"], inplace.astype(np.int64)),
        "role": text(["input", "output"], (place == 2).astype(np.int64)),
        "arg": text(["self", "other", "out0"], place),
        "written": inplace & (place == 2),
        "storage": event * 2 + place,
        "version": event % 3,
        "name": pa.nulls(n, pa.utf8()),
        "dtype": text(["float32", "bfloat16", "int64"], np.where(event % 50 == 0, 2, event % 2)),
        "device": text(["cuda:0"], np.zeros(n, np.int64)),
        "shape": pairs,
        "stride": pairs,
        "offset": np.zeros(n, np.int64),
        "numel": size * 1024,
        "min": -np.abs(chance.standard_normal(n)),
        "max": np.abs(chance.standard_normal(n)),
        "mean": chance.standard_normal(n),
        "std": np.abs(chance.standard_normal(n)),
        "norm": np.abs(chance.standard_normal(n)) * 1000,
        "nan": bad.astype(np.int64),
        "inf": np.zeros(n, np.int64),
        "posinf": np.zeros(n, np.int64),
        "zero": chance.integers(0, 1000, n),
        "start_ns": event * 25_000,
        "duration_ns": chance.integers(2_000, 60_000, n // ROWS_OF_EVENT + 2)[event - event[0]],
        "source": text([f"model.py:{i} in forward" for i in range(120)], (module * 120) // 400),
        "training": pa.array(np.ones(n, bool)),
    }
    arrays = [
        pa.array(columns[name]).cast(SCHEMA.field(name).type)
        if name in columns
        else pa.nulls(n, SCHEMA.field(name).type)
        for name in COLUMN_NAMES
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def write(path: Path, rows: int = ROWS) -> None:
    """Write a trace of so many rows."""
    chance = np.random.default_rng(0)
    writer = TraceWriter(path, {"format": FORMAT_VERSION, "dispatchmon": "synthetic", "rank": 0, "world_size": 1})
    writer.open()
    for first in range(0, rows, BATCH):
        writer.write(batch_of(first, min(BATCH, rows - first), chance))
    writer.close({"complete": True, "reason": None, "rows": rows, "events": -(-rows // ROWS_OF_EVENT), "skipped": {}})


if __name__ == "__main__":
    if len(sys.argv) < 2:  # `make bench` runs every script
        raise SystemExit(0)
    write(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else ROWS)
