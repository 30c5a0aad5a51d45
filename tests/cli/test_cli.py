"""
The command line: what its commands print word for word, and its exit statuses.
"""

import csv
import io
import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from command_line import FINITE, NONFINITE, run
from dispatchmon_cli.group import COMMANDS, group
from trace_factory import cut, write_trace


@pytest.fixture
def path(tmp_path):
    """A small trace without NaN or Inf."""
    return write_trace(tmp_path / "trace.arrow", FINITE)


def test_summarize_table(path, capsys):
    """The table has one line per operator, and below it what stands out in plain words."""
    assert run(capsys, "summarize", path) == (
        0,
        """\
operator            calls  writes    time  largest  NaN  Inf
aten.addmm.default      1       0  1.0 µs        2    0    0
aten.relu_.default      1       1  1.2 ms    41.25    0    0
aten.zeros.default      1       0  1.0 µs        -    -    -

3 operator calls in 2 steps, 1.2 ms. 1 write in place (1 inplace).
No NaN or Inf was seen; the largest magnitude is 41.25 (aten.relu_.default in the model itself, step 1).
1 of 4 values has no statistics: whether they hold NaN or Inf is unknown.
""",
        "",
    )


def test_summarize_by_module(path, capsys):
    """In a table the model itself is `(model)`, and code outside every module `(outside)`."""
    out = run(capsys, "summarize", path, "--by", "module", "--sort", "name")[1]
    assert [line.split()[0] for line in out.splitlines()[1:4]] == [
        "(model)",
        "encoder.layers.0.attention.projection",
        "(outside)",
    ]


def test_summarize_nonfinite(tmp_path, capsys):
    """The first NaN or Inf is named with all that leads to it, as seen and not as made."""
    path = write_trace(tmp_path / "trace.arrow", NONFINITE)
    status, out, err = run(capsys, "summarize", path, "--top", "1")
    assert (status, err) == (0, "")
    assert out.splitlines()[3:] == [
        "1 of 3 groups are shown; --top 0 shows all.",
        "",
        "4 operator calls in 2 steps, 1.2 ms. 1 write in place (1 inplace).",
        "NaN or Inf was first seen in input self of aten.addmm.default in encoder.layers.0.attention.projection "
        "(3 NaN and 1 Inf; step 1, forward, event 4 at train.py:31 in forward). That is where it was seen, not "
        "necessarily where it was made: `dispatchmon nonfinite` looks for the origin. Of the finite elements "
        "the largest magnitude is 41.25 (aten.relu_.default in the model itself, step 1).",
        "1 of 5 values has no statistics: whether they hold NaN or Inf is unknown.",
    ]


@pytest.mark.parametrize(
    ("nan", "inf", "sentence"),
    [
        (None, None, "NaN and Inf were not counted in this trace; no magnitude was measured."),
        (0, None, "No NaN was seen (Inf was not counted); no magnitude was measured."),
        (None, 0, "No Inf was seen (NaN was not counted); no magnitude was measured."),
    ],
)
def test_what_was_not_counted_is_not_called_absent(tmp_path, capsys, nan, inf, sentence):
    """A trace without NaN counts does not claim that there was none."""
    path = write_trace(tmp_path / "trace.arrow", [{"nan": nan, "inf": inf}])
    assert sentence in run(capsys, "summarize", path)[1].splitlines()


def test_nothing_matches(path, capsys):
    """Filters that leave nothing are answered with one sentence, and that is no failure."""
    assert run(capsys, "summarize", path, "--op", "relu") == (0, "No operator, module or parameter matches.\n", "")


def test_summarize_json(path, capsys):
    """JSON holds the whole answer under documented keys; `""` and null stay apart."""
    status, out, err = run(capsys, "summarize", path, "--by", "module", "--sort", "name", "--format", "json")
    answer = json.loads(out)
    assert (status, err) == (0, "")
    assert list(answer) == ["format", "by", "kind", "groups", "totals", "stands_out", "warnings"]
    assert (answer["format"], answer["by"], answer["kind"], answer["warnings"]) == (1, "module", "op", [])
    assert answer["groups"][0] == {
        "module": "",
        "calls": 1,
        "writes": 1,
        "time_ns": 1234567,
        "rows": 1,
        "magnitude": 41.25,
        "nan": 0,
        "inf": 0,
    }
    assert [g["module"] for g in answer["groups"]] == ["", "encoder.layers.0.attention.projection", None]
    assert answer["totals"] == {
        "calls": 3,
        "writes": 1,
        "time_ns": 1236567,
        "rows": 4,
        "magnitude": 41.25,
        "nan": 0,
        "inf": 0,
        "steps": 2,
        "ranks": 1,
        "groups": 3,
    }
    out = answer["stands_out"]
    assert out["writes"] == {"inplace": 1, "out": 0, "other": 0, "undeclared": 0}
    assert (out["first_nonfinite"], out["tensors"], out["without_statistics"]) == (None, 4, 1)
    assert list(out["largest"]) == [
        *("event", "rank", "step", "phase", "module", "op", "source", "role", "arg", "name", "dtype", "shape"),
        *("magnitude", "nan", "inf", "deliberate"),
    ]


def test_summarize_ndjson(path, capsys):
    """NDJSON is one group a line."""
    lines = run(capsys, "summarize", path, "--format", "ndjson")[1].splitlines()
    assert [json.loads(line)["op"] for line in lines] == [
        "aten.addmm.default",
        "aten.relu_.default",
        "aten.zeros.default",
    ]


def test_summarize_csv(path, capsys):
    """CSV has a header; null is an empty field and `""` an empty text, and csv readers read it back."""
    out = run(capsys, "summarize", path, "--by", "module", "--sort", "name", "--format", "csv")[1]
    assert out == (
        "module,calls,writes,time_ns,rows,magnitude,nan,inf\n"
        '"",1,1,1234567,1,41.25,0,0\n'
        "encoder.layers.0.attention.projection,1,0,1000,2,2.0,0,0\n"
        ",1,0,1000,1,,,\n"
    )
    assert [row["calls"] for row in csv.DictReader(io.StringIO(out))] == ["1", "1", "1"]


def test_summarize_markdown(path, capsys):
    """Markdown is a table for people."""
    out = run(capsys, "summarize", path, "--format", "markdown", "--op", "*relu*")[1]
    assert out == (
        "| operator | calls | writes | time | largest | NaN | Inf |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |\n"
        "| aten.relu_.default | 1 | 1 | 1.2 ms | 41.25 | 0 | 0 |\n"
    )


@pytest.mark.parametrize(
    ("options", "calls"),
    [
        (["--step", "0:1"], 1),
        (["--step", "1"], 2),
        (["--step", "1:"], 2),
        (["--step", ":1"], 1),
        (["--module", "encoder.*"], 1),
        (["--module", ""], 1),
        (["--op", "*relu*", "--op", "*zeros*"], 2),
        (["--phase", "forward", "--phase", "backward"], 3),
        (["--rank", "0"], 3),
        (["--rank", "3"], 0),
    ],
)
def test_filters(path, capsys, options, calls):
    """Each filter option chooses rows."""
    out = run(capsys, "summarize", path, "--format", "json", *options)[1]
    assert json.loads(out)["totals"]["calls"] == calls


def test_warnings_go_to_stderr_and_into_json(path, capsys):
    """A cut file is read, with a warning on stderr that leaves the data on stdout clean."""
    cut(path, -10)
    warning = "trace.arrow was not closed (the process was killed?): read 4 rows up to the cut"
    status, out, err = run(capsys, "summarize", path, "--format", "json")
    assert (status, err) == (0, f"dispatchmon: warning: {warning}\n")
    assert json.loads(out)["warnings"] == [warning]


def test_info_table(tmp_path, capsys):
    """`info` says what the file is, line by line."""
    closing = {"complete": False, "reason": "the process was interrupted", "skipped": {"compiled regions": 1200}}
    path = write_trace(tmp_path / "trace.arrow", FINITE, closing=closing)
    status, out, err = run(capsys, "info", path)
    assert status == 0
    assert (
        out
        == f"""\
file        {path} ({path.stat().st_size / 1000:.1f} kB, format 1.2)
complete    no: the process was interrupted
contents    3 events, 4 rows, 2 steps, 1 write in place
not seen    1 200 compiled regions
rank        0 of 1
model       Net (2 modules, 1 parameter)
started     2026-01-02T03:04:05+00:00
command     train.py --lr 0.1
versions    dispatchmon 0.1.0, torch 2.13.0, python 3.11.7
platform    Linux-6.1-x86_64
statistics  by torch's own reductions
settings    record=ops
cost        1.5 ms in the monitor, 20 µs waiting for the disk
"""
    )
    assert err == (
        "dispatchmon: warning: trace.arrow is incomplete: the process was interrupted\n"
        "dispatchmon: warning: trace.arrow does not hold everything: 1200 compiled regions\n"
    )


def test_info_of_a_cut_file(path, capsys):
    """Of a cut file `info` says what is known, and nothing that is not."""
    cut(path, -4000)
    out = run(capsys, "info", path)[1]
    assert "complete    no: the file was not closed\ncontents    4 rows\n" in out
    assert "cost" not in out


def test_info_json(path, capsys):
    """`info --format json` has one object per file, with raw numbers."""
    answer = json.loads(run(capsys, "info", path, "--format", "json")[1])
    assert list(answer) == ["format", "complete", "ranks", "files", "warnings"]
    assert (answer["format"], answer["complete"], answer["ranks"], answer["warnings"]) == (1, True, [0], [])
    [file] = answer["files"]
    assert (file["monitor_ns"], file["skipped"], file["command"]) == (1_500_000, {}, ["train.py", "--lr", "0.1"])


def test_info_csv(path, capsys):
    """`info --format csv` has one line per file, its nested values as JSON."""
    [row] = csv.DictReader(io.StringIO(run(capsys, "info", path, "--format", "csv")[1]))
    assert (row["file"], row["settings"], row["reason"]) == (str(path), '{"record": ["ops"]}', "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["summarize", "none.arrow"], "none.arrow does not exist"),
        (["summarize", "."], ". holds no trace; a trace is a file that ends in .arrow"),
        (["frobnicate"], "No such command 'frobnicate'; see `dispatchmon --help`"),
        (["summarize"], "Missing argument 'TRACE...'; see `dispatchmon summarize --help`"),
        (
            ["summarize", "x", "--step", "a:b"],
            "Invalid value for '--step': 'a:b' is not a range of steps; write a:b, as 10:20, or one step; "
            "see `dispatchmon summarize --help`",
        ),
        (
            ["summarize", "x", "--step", "-1"],
            "Invalid value for '--step': '-1' is not a range of steps; write a:b, as 10:20, or one step; "
            "see `dispatchmon summarize --help`",
        ),
        (
            ["summarize", "x", "--phase", "sideways"],
            "Invalid value for '--phase': 'sideways' is not one of 'forward', 'backward', 'recompute', 'optimizer'; "
            "see `dispatchmon summarize --help`",
        ),
    ],
)
def test_failures_are_one_line_and_status_1(tmp_path, monkeypatch, capsys, arguments, message):
    """What cannot be done is said in one line on stderr, with status 1, usage errors included."""
    monkeypatch.chdir(tmp_path)
    assert run(capsys, *arguments) == (1, "", f"dispatchmon: {message}\n")


HELP = [["--help"], ["-h"], [], ["--version"], *([name, "--help"] for name in COMMANDS)]


@pytest.fixture(scope="module")
def helped():
    """Of each of these, in one process without torch: the status, what it printed, and whether torch was there then."""
    script = """
import contextlib, io, json, sys
from dispatchmon_cli import main
found = []
for arguments in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        status = main(arguments)
    found.append((status, out.getvalue(), err.getvalue(), "torch" in sys.modules))
print(json.dumps(found))
"""
    command = [sys.executable, "-c", script, json.dumps(HELP)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize("number", range(len(HELP)), ids=[" ".join(arguments) for arguments in HELP])
def test_help_does_not_import_torch(number, helped):
    """Help and version are answered with status 0 and without torch."""
    status, out, err, has_torch = helped[number]
    assert (status, err, has_torch) == (0, "", False)
    assert out.startswith("Usage: dispatchmon" if HELP[number] != ["--version"] else "dispatchmon ")


def test_help_imports_no_engine():
    """`dispatchmon --help` loads neither pyarrow nor DuckDB, so it answers at once."""
    script = (
        "import sys; from dispatchmon_cli import main; main(['--help']); "
        "print([m for m in ('pyarrow', 'duckdb', 'numpy', 'rich') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_documented(name):
    """The group's one-line help is that of the command, and every option of it has help."""
    context = group.make_context("dispatchmon", [], resilient_parsing=True)
    command = group.get_command(context, name)
    assert command.help == COMMANDS[name]
    assert [p.name for p in command.params if p.param_type_name == "option" and not p.help] == []
    assert CliRunner().invoke(group, [name, "--help"]).exit_code == 0


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_the_shared_options(name):
    """Every command has the options that say how and where to answer."""
    command = group.get_command(group.make_context("dispatchmon", [], resilient_parsing=True), name)
    options = {option for p in command.params for option in p.opts}
    assert {"--format", "-o", "--output", "--force", "--no-color"} <= options
