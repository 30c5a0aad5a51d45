"""
`dispatchmon export`: what other engines get, and what is never overwritten.
"""

import csv
import json

import duckdb
import polars as pl
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from command_line import run
from dispatchmon.reading.messages import walk
from dispatchmon.schema import COLUMN_NAMES, SCHEMA
from trace_factory import make_rows, write_trace

ROWS = [
    {"step": i // 4, "nan": i, "shape": [max(1, i % 4), 2], "stride": [2, 1], "module": None if i % 3 else "",
     "cells": b"\x01\x80", "max": 0.1 * i}
    for i in range(10)
]  # fmt: skip


@pytest.fixture(autouse=True)
def _in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_trace(tmp_path / "trace.arrow", ROWS)


def test_parquet_has_the_rows_and_the_metadata(capsys):
    """The rows, types and metadata of the trace are in the file, which is named after it."""
    status, out, err = run(capsys, "export", "trace.arrow", "--to", "parquet", "--format", "json")
    answer = json.loads(out)
    assert (status, err) == (0, "")
    assert list(answer) == ["format", "to", "path", "rows", "files", "bytes", "warnings"]
    assert (answer["path"], answer["rows"], answer["files"]) == ("trace.parquet", 10, 1)
    table = pq.read_table("trace.parquet")
    assert table.to_pylist() == make_rows(ROWS)
    assert table.schema.equals(SCHEMA)
    metadata = pq.read_schema("trace.parquet").metadata
    assert json.loads(metadata[b"dispatchmon"])["model"] == "Net"
    assert json.loads(metadata[b"dispatchmon.closing"])["rows"] == 10


def test_filters_choose_rows(capsys):
    """The shared filters hold."""
    run(capsys, "export", "trace.arrow", "--to", "parquet", "--step", "1:2", "--module", "")
    assert pq.read_table("trace.parquet")["nan"].to_pylist() == [6]


def test_csv(capsys):
    """A header, every column, lists as text, bytes as digits, null empty and the empty text quoted."""
    assert run(capsys, "export", "trace.arrow", "--to", "csv", "--step", "0")[1].startswith(
        "wrote  trace.csv\nholds  4 rows"
    )
    with open("trace.csv", encoding="utf-8") as file:
        text = file.read()
    rows = list(csv.DictReader(text.splitlines()))
    assert tuple(rows[0]) == COLUMN_NAMES
    assert [(r["event"], r["shape"], r["cells"], r["max"]) for r in rows[2:]] == [
        ("2", "[2, 2]", "0180", "0.2"),
        ("3", "[3, 2]", "0180", "0.30000000000000004"),
    ]
    assert text.splitlines()[1].split(",")[6] == '""'
    assert text.splitlines()[2].split(",")[6] == ""


@pytest.mark.parametrize(
    ("columns", "folders"),
    [
        ("rank", ["rank=0"]),
        ("step", ["step=0", "step=1", "step=2"]),
        ("rank,step", ["rank=0", "rank=0/step=0", "rank=0/step=1", "rank=0/step=2"]),
    ],
)
def test_partitions(tmp_path, capsys, columns, folders):
    """Rows lie in folders by rank and step; pyarrow, DuckDB and Polars read them back as in the documentation."""
    assert run(capsys, "export", "trace.arrow", "--to", "parquet", "--partition", columns, "-o", "parts")[0] == 0
    made = sorted(str(p.relative_to(tmp_path / "parts")) for p in (tmp_path / "parts").rglob("*") if p.is_dir())
    assert made == folders
    expected = [row["nan"] for row in ROWS if row["step"] < 2]
    table = ds.dataset("parts", partitioning="hive").to_table(filter=ds.field("step") < 2)
    assert sorted(table["nan"].to_pylist()) == expected
    sql = "SELECT nan FROM read_parquet('parts/**/*.parquet', hive_partitioning = true) WHERE step < 2 ORDER BY nan"
    assert [row[0] for row in duckdb.sql(sql).fetchall()] == expected
    frame = pl.scan_parquet("parts", hive_partitioning=True).filter(pl.col("step") < 2).collect()
    assert sorted(frame["nan"].to_list()) == expected


def test_ranks_are_partitions(tmp_path, capsys):
    """Each rank of a run has its folder."""
    (tmp_path / "run").mkdir()
    for rank in (0, 1):
        rows = [{"rank": rank, "nan": rank}]
        write_trace(tmp_path / "run" / f"r{rank}.arrow", rows, metadata={"rank": rank, "world_size": 2})
    assert run(capsys, "export", "run", "--to", "parquet", "--partition", "rank,step")[0] == 0
    assert pq.read_table("run-parquet/rank=1/step=0/part-0.parquet", partitioning=None)["nan"].to_pylist() == [1]


def test_nothing_is_overwritten_without_force(tmp_path, capsys):
    """Files and folders that exist stay as they are; with --force an export replaces an export whole."""
    for to, target in (("csv", "x.csv"), ("parquet", "x.parquet")):
        (tmp_path / target).write_text("mine")
        message = f"dispatchmon: {target} exists already; --force overwrites it\n"
        assert run(capsys, "export", "trace.arrow", "--to", to, "-o", target) == (1, "", message)
        assert (tmp_path / target).read_text() == "mine"
        assert run(capsys, "export", "trace.arrow", "--to", to, "-o", target, "--force")[0] == 0
    partitioned = ["export", "trace.arrow", "--to", "parquet", "--partition", "step", "-o", "parts"]
    assert run(capsys, *partitioned)[0] == 0
    assert run(capsys, *partitioned)[2] == "dispatchmon: parts exists already; --force overwrites it\n"
    assert run(capsys, *partitioned, "--force", "--step", "0")[0] == 0
    assert [p.name for p in (tmp_path / "parts").iterdir()] == ["step=0"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "mine", "--partition", "step", "--force"], "mine holds what export has not written; name another path to write to"),
        (["-o", "mine", "--force"], "mine is a folder; name a file to write to"),
        (["-o", "mine/notes.txt", "--partition", "step", "--force"], "mine/notes.txt is a file; name a folder to write to"),
        (["-o", "trace.arrow", "--force"], "trace.arrow is the trace itself; name another path to write to"),
        (["-o", "none/x.parquet"], "there is no folder none to write x.parquet into"),
        (["--partition", "colour"], "Invalid value for '--partition': 'colour' is not rank, step, or rank,step; see `dispatchmon export --help`"),
        (["--partition", "step,step"], "Invalid value for '--partition': 'step,step' is not rank, step, or rank,step; see `dispatchmon export --help`"),
    ],
)  # fmt: skip
def test_what_is_not_an_export_is_left_alone(tmp_path, capsys, arguments, message):
    """Not even --force removes a folder that export has not made, or the trace."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    before = (tmp_path / "trace.arrow").read_bytes()
    assert run(capsys, "export", "trace.arrow", "--to", "parquet", *arguments) == (1, "", f"dispatchmon: {message}\n")
    assert (tmp_path / "mine" / "notes.txt").read_text() == "mine"
    assert (tmp_path / "trace.arrow").read_bytes() == before


def test_partition_is_for_parquet(capsys):
    """CSV has no partitions."""
    assert run(capsys, "export", "trace.arrow", "--to", "csv", "--partition", "step")[2] == (
        "dispatchmon: --partition goes with --to parquet; see `dispatchmon export --help`\n"
    )


def test_a_failure_leaves_nothing(tmp_path, capsys):
    """When the trace turns out to be damaged there is no file, no folder, and no temporary one."""
    path = tmp_path / "trace.arrow"
    with path.open("rb") as file:
        second = walk(file)[0][2]
    data = bytearray(path.read_bytes())
    data[(second.body + second.stop) // 2] ^= 1
    path.write_bytes(data)
    for arguments in (["csv"], ["parquet"], ["parquet", "--partition", "step"]):
        status, out, err = run(capsys, "export", "trace.arrow", "--to", *arguments)
        assert (status, out, err.count("\n")) == (1, "", 1)
        assert "is damaged: batch 2 of" in err
    assert [p.name for p in tmp_path.iterdir()] == ["trace.arrow"]


def test_an_empty_export_has_the_columns(capsys):
    """Filters that leave nothing make an empty file, not none."""
    assert run(capsys, "export", "trace.arrow", "--to", "parquet", "--op", "none")[0] == 0
    assert pq.read_table("trace.parquet").schema.equals(SCHEMA)
    assert pq.read_table("trace.parquet").num_rows == 0
