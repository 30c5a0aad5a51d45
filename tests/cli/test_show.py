"""
`dispatchmon show`: rows as people and programs want them, and conditions that cannot do harm.
"""

import csv
import io
import json

import pytest

from command_line import NONFINITE, on_terminal, run
from dispatchmon.schema import COLUMN_NAMES
from trace_factory import make_rows, write_trace

ROWS = [
    {**row, "shape": [8, 64, 128], "stride": [8192, 128, 1], "event": 100 + i, "mean": 3.1e-05}
    for i, row in enumerate(NONFINITE)
]


@pytest.fixture
def path(tmp_path):
    """A trace of five rows, the last with NaN and Inf."""
    return write_trace(tmp_path / "trace.arrow", ROWS)


def test_table(path, capsys):
    """Names to the left, numbers to the right, small numbers exact, what was not measured a dash."""
    assert run(capsys, "show", path, "--event", "103:") == (
        0,
        """\
event  step  phase    module                                 op                  value        dtype    shape         min  max     mean  NaN  Inf  source
  103     1  forward  (outside)                              aten.zeros.default  output out0  float32  [8, 64, 128]    -    -  3.1e-05    -    -
  104     1  forward  encoder.layers.0.attention.projection  aten.addmm.default  input self   float32  [8, 64, 128]   -1    2  3.1e-05    3    1  train.py:31 in forward

2 rows.
""",
        "",
    )


def test_limit(path, capsys):
    """A table that was cut says so, and how to see the rest."""
    assert run(capsys, "show", path, "--limit", "4")[1].endswith("\n\nThe first 4 rows; --limit 0 shows all.\n")
    assert run(capsys, "show", path, "--limit", "5")[1].endswith("\n\n5 rows.\n")
    assert run(capsys, "show", path, "--limit", "0")[1].endswith("\n\n5 rows.\n")
    assert len(json.loads(run(capsys, "show", path, "--limit", "2", "--format", "json")[1])["rows"]) == 2


def test_a_table_shows_forty_rows_and_json_all(tmp_path, capsys):
    """People get a screenful, programs everything."""
    path = write_trace(tmp_path / "trace.arrow", [{}] * 90)
    assert run(capsys, "show", path)[1].endswith("\n\nThe first 40 rows; --limit 0 shows all.\n")
    assert len(json.loads(run(capsys, "show", path, "--format", "json")[1])["rows"]) == 90


def test_long_tables_come_in_pieces(tmp_path, capsys):
    """Of a long table the header comes again after every thousand rows, in markdown only once."""
    path = write_trace(tmp_path / "trace.arrow", [{}] * 2100, batch_rows=500)
    out = run(capsys, "show", path, "--limit", "0")[1]
    assert (out.count("event  step"), out.count("aten.relu.default")) == (3, 2100)
    out = run(capsys, "show", path, "--limit", "0", "--format", "markdown")[1]
    assert (out.count("| event |"), out.count("aten.relu.default")) == (1, 2100)


def test_nothing_matches(path, capsys):
    """No row is no failure."""
    assert run(capsys, "show", path, "--event", "7") == (0, "No row matches.\n", "")
    assert json.loads(run(capsys, "show", path, "--event", "7", "--format", "json")[1]) == {
        "format": 1,
        "warnings": [],
        "rows": [],
    }


def test_json_and_ndjson_have_every_column(path, capsys):
    """The rows are those of the trace, column by column."""
    answer = json.loads(run(capsys, "show", path, "--format", "json")[1])
    assert answer["rows"] == make_rows(ROWS)
    lines = run(capsys, "show", path, "--format", "ndjson")[1].splitlines()
    assert [json.loads(line) for line in lines] == make_rows(ROWS)


def test_bytes_are_said_in_hexadecimal_digits(tmp_path, capsys):
    """JSON has no bytes."""
    path = write_trace(tmp_path / "trace.arrow", [{"cells": b"\x01\xff", "shape": [8], "stride": [1]}])
    assert json.loads(run(capsys, "show", path, "--format", "ndjson")[1])["cells"] == "01ff"


def test_csv(path, capsys):
    """CSV has every column under its name, lists as JSON."""
    rows = list(csv.DictReader(io.StringIO(run(capsys, "show", path, "--format", "csv")[1])))
    assert tuple(rows[0]) == COLUMN_NAMES
    assert [(row["event"], row["shape"]) for row in rows] == [(str(100 + i), "[8, 64, 128]") for i in range(5)]


@pytest.mark.parametrize(
    ("condition", "events"),
    [
        ("nan > 0", [104]),
        ("nan > 0 -- or so", [104]),
        ("op LIKE '%relu_%' AND min < -40", [102]),
        ("shape[2] = 64 AND \"offset\" IS NULL AND module = ''", [102]),
        ("arguments IS NULL OR nan > 2", [101, 104]),
        ("NAN > 0", [104]),
        ("false", []),
    ],
)
def test_where(path, capsys, condition, events):
    """A condition is one SQL expression over the columns."""
    out = run(capsys, "show", path, "--where", condition, "--format", "json")[1]
    assert [row["event"] for row in json.loads(out)["rows"]] == events


@pytest.mark.parametrize(
    ("condition", "problem"),
    [
        ("nan >", 'Parser Error: syntax error at or near ">"'),
        ("", "Parser Error: SELECT clause without selection list"),
        ("true) OR (true", 'Parser Error: syntax error at or near ")"'),
        ("true; DROP TABLE trace", "Parser Error: Cannot have any modifiers in the expression list"),
        ("true UNION SELECT 1", "Parser Error: Cannot have any modifiers in the expression list"),
        ("nan > 0, inf > 0", "Parser Error: Expected a single expression as filter condition"),
        ("event IN (SELECT event FROM trace)", "Catalog Error: Table with name trace does not exist!"),
        ("event IN (SELECT event FROM every_row)", "Catalog Error: Table with name every_row does not exist!"),
        ("event IN (SELECT 1 FROM read_csv('/etc/passwd'))", 'Permission Error: Cannot access file "/etc/passwd"'),
        ("event IN (SELECT 1 FROM '/etc/passwd.csv')", ""),
        ("colour = 1", 'Binder Error: Referenced column "colour" not found in FROM clause!'),
        ("count(*) > 1", "Binder Error: WHERE clause cannot contain aggregates!"),
        ("event = $filter_0", "Binder Error: "),
        ("/* open", "Parser Error: unterminated /* comment"),
    ],
)
def test_what_is_no_condition_is_refused(path, capsys, condition, problem):
    """It is said in one line, before the trace is opened, and nothing but the columns of a row can be reached."""
    status, out, err = run(capsys, "show", path, "--where", condition)
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"dispatchmon: the condition {condition!r} is not understood: {problem}")


def test_a_condition_that_fails_on_a_row(path, capsys):
    """What goes wrong with the values is one line too."""
    status, _, err = run(capsys, "show", path, "--where", "op::INTEGER > 1")
    assert (status, err.count("\n")) == (1, 1)
    assert "Could not convert string 'aten" in err


def test_on_a_terminal_names_are_cut_then_columns_left_out(path):
    """At 100 columns no line is longer, what was left out is named, and bad counts are red."""
    status, shown = on_terminal(["show", path, "--event", "103:"], 100)
    assert status == 0
    plain = shown.replace("\x1b[1m", "").replace("\x1b[0m", "")
    lines = plain.splitlines()
    assert lines[0].split() == ["event", "step", "module", "op", "value", "shape", "min", "max", "NaN", "Inf"]
    assert all(len(line.replace("\x1b[31m", "")) <= 100 for line in lines)
    assert "encode" in plain
    assert "…" in plain
    assert "Left out to fit the terminal: phase, dtype, mean, source." in lines
    assert "\x1b[31m  3\x1b[0m" in shown


def test_ranks_have_a_column_when_there_are_several(tmp_path, capsys):
    """The rank is shown where it tells rows apart."""
    for rank in (0, 1):
        write_trace(tmp_path / f"r{rank}.arrow", [{"rank": rank}], metadata={"rank": rank, "world_size": 2})
    out = run(capsys, "show", tmp_path)[1]
    assert [line.split()[:2] for line in out.splitlines()[:3]] == [["event", "rank"], ["0", "0"], ["0", "1"]]


def test_other_kinds_of_events_say_so(tmp_path, capsys):
    """A hazard is not taken for an operator."""
    path = write_trace(tmp_path / "trace.arrow", [{"kind": "hazard", "role": "silent"}, {"role": None, "arg": None}])
    out = run(capsys, "show", path)[1]
    assert "hazard silent self" in out
    assert "(no tensor)" in out


def test_only_batches_within_the_ranges_are_read(tmp_path, capsys):
    """
    A question about one step reads no other batch, so it is answered even if the others are damaged.

    Since 1.2 a batch that is damaged may not be left out: which steps it holds is as uncertain as all else of it.
    """
    noise = [f"{i * 7919 % 1000003}-{i}" for i in range(3000)]
    rows = [{"step": 0, "source": text} for text in noise] + [{"step": 1}] * 3
    path = write_trace(tmp_path / "trace.arrow", rows, metadata={"format": "1.0"}, batch_rows=3000)
    data = bytearray(path.read_bytes())
    frames = [i for i in range(len(data)) if data[i : i + 4] == b"\x28\xb5\x2f\xfd"]  # zstd's magic number
    start, end = max(zip(frames, [*frames[1:], len(data)], strict=True), key=lambda ends: ends[1] - ends[0])
    data[start : end - 500] = bytes(end - 500 - start)
    path.write_bytes(data)
    assert run(capsys, "show", path)[::2] == (
        1,
        f"dispatchmon: {path} is damaged: batch 1 of 3 cannot be read; record it again\n",
    )
    for filters in (["--step", "1:"], ["--event", "3000:3003"]):
        status, out, _ = run(capsys, "show", path, *filters)
        assert (status, out.splitlines()[-1]) == (0, "3 rows.")
    assert run(capsys, "summarize", path, "--step", "1")[0] == 0
    path = write_trace(tmp_path / "trace.arrow", rows, batch_rows=3000)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    for filters in ([], ["--step", "1:"]):
        status, out, said = run(capsys, "show", path, *filters)
        assert (status, out) == (1, "")
        assert "its checksum is another" in said
