"""
What an answer costs: batches that are read, columns that are decoded, files that are opened, databases that are started.

Counted, not timed.
"""

from __future__ import annotations

from collections import Counter

import pytest

from dispatchmon.analysis.audit import audit
from dispatchmon.analysis.nonfinite import find_nonfinite
from dispatchmon.analysis.summary import summarize
from dispatchmon.reading import database
from dispatchmon.reading.batches import BatchReader
from dispatchmon.reading.query import Filters, query
from dispatchmon.trace import open_trace
from trace_factory import write_trace

BATCHES, RANKS = 12, 9
STATS = {"min": -1.0, "max": 1.0, "mean": 0.0, "std": 1.0, "norm": 1.0, "nan": 0, "inf": 0, "zero": 0, "numel": 1}
PLACE = {"shape": [1], "stride": [1], "offset": 0, "version": 0}


class Work:
    """How often each batch was read, and what was decoded of it."""

    def __init__(self):
        self.read, self.decoded, self.opened = Counter(), Counter(), 0


@pytest.fixture
def work(monkeypatch):
    """What is done from here on."""
    done = Work()
    init, read, decoded = BatchReader.__init__, BatchReader.read, BatchReader._decoded

    def count_open(self, path):
        done.opened += 1
        init(self, path)

    def count_read(self, number, *given, **named):
        done.read[number] += 1
        self.number = number
        return read(self, number, *given, **named)

    def count_decoded(self, stream, columns):
        done.decoded.update((self.number, name) for name in columns)
        return decoded(self, stream, columns)

    monkeypatch.setattr(BatchReader, "__init__", count_open)
    monkeypatch.setattr(BatchReader, "read", count_read)
    monkeypatch.setattr(BatchReader, "_decoded", count_decoded)
    return done


def rows_with(bad=(), write=()):
    """One operator of two rows for each number, each in memory of its own."""
    for i in range(2 * BATCHES):
        for role in ("input", "output"):
            yield {
                **STATS, **PLACE, "event": i, "storage": 2 * i + (role == "output"), "role": role,
                "arg": "self" if role == "input" else "out0", "arguments": "{}" if role == "input" else None,
                "nan": int(i in bad and role == "output"), "op": f"aten.op{i}.default",
                "mutation": "inplace" if i in write else "none", "written": i in write,
            }  # fmt: skip


def trace_of(tmp_path, **rows):
    """Two events in each of the batches 0 to BATCHES; the last, empty one closes the file."""
    return open_trace(write_trace(tmp_path / "trace.arrow", rows_with(**rows), batch_rows=4))


def test_a_summary_reads_each_batch_twice(tmp_path, work):
    """
    And before it, to learn whether it allocates memory; and once more the one that holds the first NaN, twice, and the one
    that holds the largest value.
    """
    trace = trace_of(tmp_path, bad={7})
    work.read.clear()
    assert summarize(trace).stands_out.first_nonfinite.event == 7
    assert work.read == Counter(dict.fromkeys(range(BATCHES + 1), 2)) + Counter([7 // 2, 7 // 2, 0 // 2])
    assert {n for n, name in work.decoded if name in ("shape", "arg", "source")} == {7 // 2, 0 // 2}
    assert {n for n, name in work.decoded if name in ("stride", "storage", "mean")} == {7 // 2}  # is it deliberate?


def test_without_nan_a_search_reads_each_batch_once(tmp_path, work):
    """And of it twelve columns of the forty; the largest value is then looked up in its batch."""
    trace = trace_of(tmp_path)
    work.read.clear()
    assert not find_nonfinite(trace).found
    assert work.read == Counter(dict.fromkeys(range(BATCHES + 1), 1)) + Counter([0])
    surveyed = {"kind", "event", "op", "phase", "role", "storage", "dtype", "nan", "inf", "min", "max", "written"}
    assert {name for n, name in work.decoded if n > 0} == surveyed


def test_only_batches_that_touch_bad_memory_are_decoded_as_a_whole(tmp_path, work):
    """Of the others the search looks at the memory they touch."""
    trace = trace_of(tmp_path, bad={7})
    assert find_nonfinite(trace).first.event == 7
    assert {n for n, name in work.decoded if name in ("stride", "cells", "mean")} == {7 // 2}


def test_an_audit_decodes_what_writes(tmp_path, work):
    """Places in memory are looked at where something was written, and only of the batches that hold such an event."""
    trace = trace_of(tmp_path, write={9, 15})
    audit(trace)
    assert {n for n, name in work.decoded if name in ("stride", "storage")} == {9 // 2, 15 // 2}
    assert not [name for _, name in work.decoded if name in ("offset", "cause_event", "mean")]


def test_what_is_known_of_a_batch_need_not_be_read(tmp_path, work):
    """Once the events were seen, those of one event are in one batch."""
    trace = trace_of(tmp_path)
    list(trace.scan(["event", "kind"]))
    work.read.clear()
    sql = "SELECT count(*) AS n FROM trace"
    assert next(query(trace, sql, ["event"], Filters(events=(8, 9)))) == {"n": 2}
    assert work.read == Counter({8 // 2: 1})
    work.read.clear()
    assert next(query(trace, sql, ["event"], within={"kind": frozenset({"hazard"})})) == {"n": 0}
    assert not work.read


def test_every_rank_is_asked_in_one_database(tmp_path, monkeypatch):
    """A trace of many ranks starts DuckDB once."""
    started = []
    connect = database.duckdb.connect
    monkeypatch.setattr(database.duckdb, "connect", lambda *given, **named: started.append(1) or connect(*given, **named))
    database._database.cache_clear()
    for rank in range(RANKS):
        rows = ({**row, "rank": rank} for row in rows_with(bad={7}, write={3}))
        write_trace(tmp_path / f"{rank}.arrow", rows, metadata={"rank": rank, "world_size": RANKS})
    for answer in (summarize, audit, find_nonfinite):
        answer(open_trace(tmp_path))
    assert started == [1]


def test_a_summary_opens_each_file_three_times(tmp_path, work):
    """To know it, to look for allocations, and to read it; and those once more that hold what stands out."""
    for rank in range(RANKS):
        rows = ({**row, "rank": rank} for row in rows_with())
        write_trace(tmp_path / f"{rank}.arrow", rows, metadata={"rank": rank, "world_size": RANKS})
    summarize(open_trace(tmp_path))
    assert work.opened == 3 * RANKS + 1
