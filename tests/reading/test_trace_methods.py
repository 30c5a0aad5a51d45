"""
`Trace`: its rows in every form are the same, and what it is asked wrongly it says.
"""

import math
from pathlib import Path

import pyarrow as pa
import pytest

from command_line import NONFINITE
from dispatchmon import DispatchmonError, NotATraceError, SettingError, Trace, open_trace
from dispatchmon.export import frames
from dispatchmon.reading import sql
from dispatchmon.schema import COLUMN_NAMES, SCHEMA
from folders import GOLD
from trace_factory import cut, make_rows, write_trace

TRACE = GOLD / "trace-1.1.arrow"
ROWS = [
    {"step": i // 4, "event": i, "nan": i % 3, "inf": None, "shape": [i % 4 + 1, 2], "stride": [2, 1], "module": f"m{i % 2}",
     "cells": b"\x01\x80",
     "max": 0.1 * i, "digest": 2**64 - 1 - i if i % 2 else None, "storage": 2**53 + i, "phase": ("forward", "backward")[i % 2]}
    for i in range(10)
]  # fmt: skip


@pytest.fixture
def trace(tmp_path):
    """A trace of ten rows in four steps' batches."""
    return open_trace(write_trace(tmp_path / "trace.arrow", ROWS))


def read_alone(path):
    """The rows, by pyarrow alone."""
    with pa.ipc.open_file(str(path)) as reader:
        return reader.read_all().replace_schema_metadata()


# ------------------------------------------------------------------------------------------------- rows
def test_arrow_is_the_file():
    """All columns, types and rows are those that pyarrow reads."""
    assert open_trace(TRACE).to_arrow().equals(read_alone(TRACE))


def test_every_form_has_the_same_rows(trace):
    """Arrow, pandas, Polars, SQL and rows agree, also on nulls and on numbers that no float holds."""
    expected = make_rows(ROWS)
    columns = [name for name in COLUMN_NAMES if name != "cells"]
    assert trace.to_arrow().to_pylist() == expected
    assert trace.sql("SELECT * FROM trace").to_pylist() == expected
    assert trace.to_polars().to_dicts() == expected
    assert list(trace.iter_rows(columns)) == [{name: row[name] for name in columns} for row in expected]
    assert [row["cells"] for row in trace.iter_rows("cells")] == ["0180"] * 10
    frame = trace.to_pandas(["event", "nan", "inf", "digest", "storage", "written", "max", "module", "shape"])
    assert frame["digest"].isna().tolist() == [row["digest"] is None for row in expected]
    assert frame["digest"].dropna().tolist() == [r["digest"] for r in expected if r["digest"] is not None]
    assert frame["storage"].tolist() == [row["storage"] for row in expected]
    assert frame["inf"].isna().all()
    assert frame["written"].tolist() == [False] * 10
    assert [list(shape) for shape in frame["shape"]] == [row["shape"] for row in expected]
    assert frame["max"].tolist() == [row["max"] for row in expected]


@pytest.mark.parametrize(
    ("filters", "events"),
    [
        ({"steps": 1}, [4, 5, 6, 7]),
        ({"steps": (1, 2)}, [4, 5, 6, 7]),
        ({"steps": "2:"}, [8, 9]),
        ({"steps": (None, 1)}, [0, 1, 2, 3]),
        ({"events": "3:5"}, [3, 4]),
        ({"modules": "m1", "steps": 0}, [1, 3]),
        ({"modules": ("m1", "m0"), "events": 3}, [3]),
        ({"phases": "backward", "where": "nan > 1"}, [5]),
        ({"ranks": 1}, []),
        ({"ranks": [0], "ops": "aten.relu*", "where": "max > 0.75"}, [8, 9]),
    ],
)
def test_filters(trace, filters, events):
    """The rows that meet every filter, in whatever form."""
    assert trace.to_arrow("event", **filters)["event"].to_pylist() == events
    assert trace.to_pandas("event", **filters)["event"].tolist() == events
    assert trace.to_polars("event", **filters)["event"].to_list() == events
    assert [row["event"] for row in trace.iter_rows("event", **filters)] == events


def test_columns_and_limit(trace):
    """Only the columns that are asked for, in their order; 0 is no limit."""
    assert trace.to_arrow(["nan", "event"]).schema == pa.schema([SCHEMA.field("nan"), SCHEMA.field("event")])
    assert trace.to_arrow(["nan", "event"], steps=0).column_names == ["nan", "event"]
    assert list(trace.iter_rows(["event"], limit=2)) == [{"event": 0}, {"event": 1}]
    assert len(list(trace.iter_rows("event", limit=0))) == 10


def test_no_row(tmp_path):
    """A trace without rows has all columns."""
    trace = open_trace(write_trace(tmp_path / "trace.arrow", []))
    assert trace.to_arrow().schema == SCHEMA
    assert (len(trace.to_pandas()), trace.to_polars().shape, list(trace.iter_rows())) == (0, (0, len(COLUMN_NAMES)), [])
    assert trace.sql("SELECT count(*) AS n FROM trace").to_pylist() == [{"n": 0}]


def test_a_cut_trace_and_several_ranks(tmp_path):
    """What a scan reads is what every form has."""
    for rank in (0, 1):
        write_trace(tmp_path / f"r{rank}.arrow", [{"rank": rank, "nan": i} for i in range(6)], metadata={"rank": rank, "world_size": 2})
    cut(tmp_path / "r1.arrow", -10)
    trace = open_trace(tmp_path)
    assert trace.to_arrow().num_rows == trace.rows
    assert trace.sql("SELECT rank, count(*) AS n FROM trace GROUP BY rank ORDER BY rank").to_pylist() == [
        {"rank": 0, "n": 6},
        {"rank": 1, "n": trace.rows - 6},
    ]


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_a_missing_package_is_named(trace, monkeypatch, package):
    """What to install is said."""

    def absent(name):
        raise ImportError(name)

    monkeypatch.setattr(frames, "import_module", absent)
    with pytest.raises(DispatchmonError) as met:
        getattr(trace, f"to_{package}")()
    assert str(met.value) == f"to_{package} needs {package}: pip install {package}"


# ------------------------------------------------------------------------------------------------- SQL
def test_sql_may_name_the_table_several_times(trace):
    """Joins, subqueries, common tables and windows see all rows each time."""
    assert trace.sql("SELECT count(*) AS n FROM trace a JOIN trace b USING (event)").to_pylist() == [{"n": 10}]
    twice = "WITH t AS (SELECT step FROM trace) SELECT count(*) AS n FROM t a, t b WHERE a.step = b.step"
    assert trace.sql(twice).to_pylist() == [{"n": 16 + 16 + 4}]
    last = "SELECT event FROM trace QUALIFY row_number() OVER (PARTITION BY step ORDER BY event DESC) = 1 ORDER BY event"
    assert trace.sql(last)["event"].to_pylist() == [3, 7, 9]


def test_sums_are_whole_numbers(trace):
    """DuckDB's 128 bits become 64 where they fit, and stay where they do not."""
    answer = trace.sql("SELECT sum(nan) AS small, sum(digest) AS large FROM trace")
    assert answer.schema.field("small").type == pa.int64()
    assert answer.to_pylist()[0]["small"] == sum(row["nan"] for row in ROWS)
    assert int(answer.to_pylist()[0]["large"]) == sum(row["digest"] or 0 for row in ROWS) > 2**64


@pytest.mark.parametrize(
    ("statement", "columns"),
    [
        ("SELECT op, count(*) AS n FROM trace t GROUP BY op ORDER BY n", ["op"]),
        ("SELECT count(*) FROM trace", ["event"]),
        ('SELECT "Op" FROM trace WHERE "offset" > 1', ["op", "offset"]),
        ("SELECT 1 FROM trace a JOIN trace b USING (storage)", ["storage"]),
        ("FROM trace SELECT trace.nan", ["nan"]),
        ("FROM trace", list(COLUMN_NAMES)),
        ("SELECT * EXCLUDE (op) FROM trace", list(COLUMN_NAMES)),
        ("SELECT t FROM trace t", list(COLUMN_NAMES)),
        ("SELECT count(DISTINCT trace) FROM trace", list(COLUMN_NAMES)),
        ("SELECT a.op FROM trace a NATURAL JOIN trace b", list(COLUMN_NAMES)),
        ("SELECT COLUMNS('m.*') FROM trace", list(COLUMN_NAMES)),
        ("SELECT #1 FROM trace", list(COLUMN_NAMES)),
        ("SUMMARIZE trace", list(COLUMN_NAMES)),
    ],
)
def test_only_the_columns_that_a_statement_looks_at_are_read(statement, columns):
    """Those that it names; all of them where it may look at any."""
    with sql.duckdb.connect(":memory:") as connection:
        assert sql.looked_at(connection, statement) == columns


EXAMPLE = 'give one SELECT over the table trace, as "SELECT op, count(arguments) FROM trace GROUP BY op"'


@pytest.mark.parametrize(
    ("statement", "error", "message"),
    [
        ("", SettingError, f"the statement is empty: {EXAMPLE}"),
        (3, SettingError, f"the statement is 3: {EXAMPLE}"),
        ("SELECT 1; SELECT 2", SettingError, f"these are 2 statements: {EXAMPLE}"),
        ("COPY trace TO 'x.csv'", SettingError, f"the statement is no SELECT, but COPY: {EXAMPLE}"),
        ("SET enable_external_access = true", SettingError, f"the statement is no SELECT, but SET: {EXAMPLE}"),
        ("SELECT opp FROM trace", DispatchmonError, 'the statement is not understood: Binder Error: Referenced column "opp" '),
        ("SELEC op FROM trace", DispatchmonError, "the statement is not understood: Parser Error: syntax error at or near "),
        ("SELECT * FROM trac", DispatchmonError, "the statement is not understood: Catalog Error: Table with name trac does "),
        ("SELECT op::INT FROM trace", DispatchmonError, "the statement failed: Conversion Error: Could not convert string "),
    ],
)
def test_sql_that_cannot_be_meant(trace, statement, error, message):
    """What is wrong is said in one line."""
    with pytest.raises(error) as met:
        trace.sql(statement)
    assert str(met.value).startswith(message)
    assert "\n" not in str(met.value)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT content FROM read_text('/etc/hostname')",
        "SELECT * FROM glob('/*')",
        "SELECT * FROM ROWS_OF_PYTHON",
        "SELECT event FROM trace WHERE event IN (SELECT size FROM glob('/*'))",
    ],
)
def test_sql_reaches_nothing_but_the_rows(trace, statement):
    """Neither files nor Python variables."""
    ROWS_OF_PYTHON = trace.to_arrow()  # noqa: F841
    with pytest.raises(DispatchmonError, match="^the statement is not understood: "):
        trace.sql(statement)


def test_damage_is_a_trace_error(tmp_path):
    """Damage in the middle of a file is said as such, whatever is asked."""
    path = write_trace(tmp_path / "t.arrow", [{"op": f"aten.op{i * i * 7919 % 10007}"} for i in range(3000)], batch_rows=1000)
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 6000] = bytes(6000)
    path.write_bytes(data)
    trace = open_trace(path)
    for ask in (trace.to_arrow, trace.summarize, lambda: trace.sql("FROM trace"), lambda: list(trace.iter_rows())):
        with pytest.raises(NotATraceError, match=r"is damaged: batch \d of 4 cannot be read: its checksum is another, .*; record it again"):
            ask()


# ------------------------------------------------------------------------------------------------- arguments
INTERVAL = 'give a number, "10:20" or (10, 20), which is from 10 up to, not including, 20; either end may be left out'
PHASES = "choose from forward, backward, recompute, optimizer"
COLUMNS = f"it has {', '.join(COLUMN_NAMES)}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"by": "modul"}, "by: 'modul' is not known (did you mean 'module'?); choose from op, module, phase, step, dtype, source"),
        ({"sort": "key; DROP"}, "sort: 'key; DROP' is not known; choose from calls, writes, time, magnitude, nan, inf, name"),
        ({"by": None}, "by: None is not known; choose from op, module, phase, step, dtype, source"),
        ({"top": -1}, "top is -1: give a number, 0 for all"),
        ({"top": "5"}, "top is '5': give a number, 0 for all"),
        ({"steps": "x"}, f"steps is 'x': {INTERVAL}"),
        ({"steps": -1}, f"steps is -1: {INTERVAL}"),
        ({"steps": True}, f"steps is True: {INTERVAL}"),
        ({"steps": (1, 2, 3)}, f"steps is (1, 2, 3): {INTERVAL}"),
        ({"steps": [1, 2]}, f"steps is [1, 2]: {INTERVAL}"),
        ({"steps": "20:10"}, "steps is '20:10': nothing lies between these"),
        ({"steps": (3, 3)}, "steps is (3, 3): nothing lies between these"),
        ({"modules": 3}, "modules is 3: give a glob, as \"encoder.*\", or several"),
        ({"ops": ()}, "ops is empty: leave it out, or give at least one"),
        ({"ops": ["a", 1]}, "ops is ['a', 1]: give a text or several"),
        ({"phases": "forwad"}, f"phases: 'forwad' is not known (did you mean 'forward'?); {PHASES}"),
        ({"phases": ["forward", "x"]}, f"phases: 'x' is not known; {PHASES}"),
        ({"ranks": "0"}, "ranks is '0': give a number or several, as (0, 3)"),
        ({"ranks": [0, -1]}, "ranks is [0, -1]: give a number or several, as (0, 3)"),
    ],
)
def test_arguments_that_cannot_be_meant(trace, arguments, message):
    """Which argument, what it is, and what it may be."""
    with pytest.raises(SettingError) as met:
        trace.summarize(**arguments)
    assert str(met.value) == message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"columns": "modul"}, f"columns: a trace has no column 'modul' (did you mean 'module'?); {COLUMNS}"),
        ({"columns": ["op", "colour"]}, f"columns: a trace has no column 'colour'; {COLUMNS}"),
        ({"columns": ["op", "op"]}, "columns: 'op' is there twice"),
        ({"columns": []}, "columns is empty: leave it out, or give at least one"),
        ({"events": "a"}, f"events is 'a': {INTERVAL}"),
    ],
)
def test_columns_that_cannot_be_meant(trace, arguments, message):
    """A column that is not there is named, with the one that may be meant."""
    for ask in (trace.to_arrow, trace.to_pandas, trace.to_polars, trace.iter_rows):
        with pytest.raises(SettingError) as met:
            ask(**arguments)
        assert str(met.value) == message


def test_a_wrong_condition(trace):
    """`where` is checked before anything is read."""
    with pytest.raises(DispatchmonError, match=r"^the condition 'nam > 0' is not understood: Binder Error: "):
        trace.iter_rows(where="nam > 0")


# ------------------------------------------------------------------------------------------------- what it is
def test_repr(tmp_path, monkeypatch):
    """Which files, ranks, rows, steps, and whether that is all."""
    monkeypatch.chdir(tmp_path)
    write_trace(Path("one.arrow"), NONFINITE)
    assert repr(open_trace("one.arrow")) == "<Trace one.arrow: rank 0, 5 rows, 2 steps, complete>"
    write_trace(Path("open.arrow"), NONFINITE, closed=False)
    assert repr(open_trace("open.arrow")) == "<Trace open.arrow: rank 0, rows unknown, not complete>"
    Path("run").mkdir()
    for rank in range(5):
        write_trace(Path(f"run/r{rank}.arrow"), [{}] * 300, metadata={"rank": rank, "world_size": 8})
    assert repr(open_trace("run")) == (
        "<Trace run/r0.arrow, run/r1.arrow, run/r2.arrow, …: 5 ranks of 8, 1 500 rows, 1 step, not complete>"
    )


def test_html(tmp_path):
    """The same as a small table, with the warnings below; a file name is text."""
    trace = open_trace(write_trace(tmp_path / "<b>.arrow", metadata={"world_size": 2}))
    html = trace._repr_html_()
    assert "&lt;b&gt;.arrow" in html
    assert "<b>" not in html
    assert "1 of 2 rank is missing: 1" in html


def test_a_trace_is_the_files_of_its_ranks(trace):
    """Ranks, completeness, rows, warnings and scan are there as well; an answer carries the warnings."""
    assert isinstance(trace, Trace)
    assert (trace.ranks, trace.complete, trace.rows, trace.warnings) == ((0,), True, 10, ())
    assert math.isclose(trace.scan(["max"]).read_all()["max"][9].as_py(), 0.9)
