"""What a trace says reaches neither a terminal nor a spreadsheet as a command, in any format of any command."""

import csv
import io
import json
import unicodedata

import pyarrow.parquet as pq
import pytest

from command_line import run
from dispatchmon.words.harmless import cell, csv_line, json_text, printable
from trace_factory import write_trace

# C0, DEL, C1, overrides and isolates of the direction, a separator of lines, half a pair is not storable in Arrow
CONTROL = "\x1b[2J\a\r\n\t\x7f\x85\x9b31m\u202e\u2066\u200f\u2028\ufeff"
FORMULA = "=HYPERLINK(\"http://x\";\"y\")"
HOSTILE = {"module": FORMULA + CONTROL, "op": "@SUM(1)." + CONTROL, "arg": "+1+cmd|' /C calc'!A0", "source": "-2+3" + CONTROL}
COMMANDS = ("summarize", "show", "audit", "nonfinite", "structure", "info")
FORMATS = ("table", "json", "ndjson", "csv", "markdown")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A trace all of whose texts are hostile."""
    names = {"name": "\uff0b1" + CONTROL, "class": "=1" + CONTROL}
    rows = [
        {**HOSTILE, "step": 0, "numel": 4, "nan": 0, "inf": 0, "min": -1.0, "max": 1.0, "storage": 1, "version": 0},
        {**HOSTILE, "step": 1, "numel": 4, "nan": 4, "inf": 0, "storage": 1, "version": 1, "mutation": "inplace"},
        {**HOSTILE, "kind": "module", "role": "output", "numel": 4, "nan": 4, "inf": 0, "name": FORMULA, "step": 1},
        {**HOSTILE, "kind": "parameter", "role": "value", "numel": 4, "nan": 4, "inf": 0, "name": FORMULA, "step": 1},
    ]
    metadata = {
        "model": "=Net" + CONTROL, "command": ["=1", CONTROL], "modules": [names],
        "parameters": [{"name": FORMULA + CONTROL, "shape": [4], "dtype": "float32"}], "platform": CONTROL,
    }  # fmt: skip
    closing = {"complete": False, "reason": CONTROL, "skipped": {CONTROL: 2}}
    folder = tmp_path_factory.mktemp("hostile") / ("t" + CONTROL.replace("\x00", ""))
    folder.mkdir()
    return write_trace(folder / f"{CONTROL}.arrow", rows, metadata=metadata, closing=closing)


def is_harmless(text):
    """Whether a terminal would show all of a text: no character of the categories Cc, Cf, Zl, Zp but the ends of lines."""
    return not any(unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp", "Co", "Cs") for c in text.replace("\n", ""))


def is_formula(field):
    """Whether a spreadsheet would run a cell."""
    if not field or field[0] not in "=+-@\t\r\uff1d\uff0b\uff0d\uff20":
        return False
    try:
        float(field)
    except ValueError:
        return True
    return False


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_reaches_a_terminal_raw(path, capsys, command, format_):
    """Neither what is answered nor what is warned of holds a control character; JSON still says the names."""
    status, out, err = run(capsys, command, path, "--format", format_)
    assert status in (0, 2)
    assert out or format_ == "ndjson"  # of which there is none if nothing was found
    assert err
    assert is_harmless(out)
    assert is_harmless(err)
    if format_ == "json":
        json.loads(out)
    if format_ == "csv":
        fields = [field for line in csv.reader(io.StringIO(out)) for field in line]
        fields += [part for field in fields for part in field.split(";")[:1]]
        assert fields
        assert not [field for field in fields if is_formula(field)]


def test_json_says_the_names(path, capsys):
    """What is escaped is the same once it is read."""
    document = json.loads(run(capsys, "show", path, "--format", "json")[1])
    assert document["rows"][0]["module"] == HOSTILE["module"]


@pytest.mark.parametrize("to", ["csv", "scalars"])
def test_no_cell_is_a_formula(path, tmp_path, capsys, to):
    """An exported table holds no formula and no control character; numbers stay numbers."""
    status, out, err = run(capsys, "export", path, "--to", to, "-o", tmp_path / "t.csv")
    assert (status, is_harmless(out), is_harmless(err)) == (0, True, True)
    text = (tmp_path / "t.csv").read_text()
    assert is_harmless(text)
    fields = [field for line in csv.reader(io.StringIO(text)) for field in line]
    assert not [field for field in fields if is_formula(field)]
    assert any(field.startswith("'=HYPERLINK") for field in fields)
    if to == "csv":
        assert "-1" in fields


def test_parquet_is_exact(path, tmp_path, capsys):
    """For programs nothing is changed."""
    assert run(capsys, "export", path, "--to", "parquet", "-o", tmp_path / "t.parquet")[0] == 0
    assert pq.read_table(tmp_path / "t.parquet")["module"][0].as_py() == HOSTILE["module"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("=1+1", "'=1+1"), ("+cmd", "'+cmd"), ("-x", "'-x"), ("@a", "'@a"), (" =1", "' =1"), ("\uff1d1", "'\uff1d1"),
        ("-1.5e-3", "-1.5e-3"), ("+7", "+7"), ("-inf", "-inf"), ("-1_0", "'-1_0"), ("a=b", "a=b"), ("", ""),
        ("\t=1", "\\t=1"), ("größe", "größe"), ("-", "'-"),
    ],
)  # fmt: skip
def test_cells(text, said):
    """What begins as a formula gets an apostrophe, and numbers none."""
    assert cell(text) == said


def test_fields():
    """A field that any usual separator would part is in quotes."""
    assert csv_line(("a;=1", None, "", 'say "x"', -1.0, True, [1, None])) == '"a;=1",,"","say ""x""",-1.0,True,"[1, null]"'


def test_characters():
    """What is not printable becomes an escape that names it."""
    assert printable("a\x1b\x9b\u202eb") == "a\\x1b\\x9b\\u202eb"
    assert json_text({"a": "ö\x7f\x85\u2066\U000e0001😀"}) == '{"a": "ö\\u007f\\u0085\\u2066\\udb40\\udc01😀"}'
