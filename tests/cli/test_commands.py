"""
Every command, whichever there are: documented, with help, and true to the exit statuses.
"""

import json
import random
import re
import shutil

import pytest

from command_line import NONFINITE, run
from dispatchmon_cli.group import COMMANDS, group
from folders import GOLD, ROOT
from trace_factory import cut, write_trace

DOCUMENT = (ROOT / "docs" / "commands.md").read_text()
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", DOCUMENT, re.MULTILINE | re.DOTALL))
SHARED = SECTIONS["Options of all commands"]
REQUIRED = {"export": ["--to", "parquet"]}  # options without which a command cannot run
FREE = {"settings", "skipped", "flush", "kept_for_good"}  # objects whose keys format.md describes
OLD = GOLD / "trace-1.0.arrow"


@pytest.fixture(autouse=True)
def _in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def command_of(name):
    return group.get_command(group.make_context("dispatchmon", [], resilient_parsing=True), name)


def keys_of(value):
    """All keys of a JSON document, at any depth."""
    if isinstance(value, dict):
        return set(value) | {key for k, item in value.items() if k not in FREE for key in keys_of(item)}
    return {key for item in value for key in keys_of(item)} if isinstance(value, list) else set()


@pytest.mark.parametrize("name", COMMANDS)
def test_it_has_a_section_with_its_options(name):
    """docs/commands.md has the command's one-line help and names every option."""
    assert (
        SECTIONS[name]
        .split("\n\n")[1 if SECTIONS[name].startswith("\n\n") else 0]
        .strip()
        .startswith(COMMANDS[name].removesuffix("."))
    )
    for parameter in command_of(name).params:
        for option in parameter.opts if parameter.param_type_name == "option" else ():
            assert f"`{option}`" in SECTIONS[name] + SHARED, option


@pytest.mark.parametrize("name", COMMANDS)
def test_its_json_keys_are_documented(name, capsys):
    """Every key of the JSON is in the command's section, in backticks, and the document has its version and warnings."""
    out = run(capsys, name, OLD, "--format", "json", *REQUIRED.get(name, []))[1]
    answer = json.loads(out)
    assert answer["format"] == 1
    assert answer["warnings"] == []
    assert {
        key for key in keys_of(answer) if f"`{key}`" not in SECTIONS[name] + DOCUMENT.partition("\n## ")[0] + SHARED
    } == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_its_help(name, capsys):
    """`--help` is status 0, and says what the command does and what each option means."""
    status, out, err = run(capsys, name, "--help")
    assert (status, err) == (0, "")
    assert out.startswith(f"Usage: dispatchmon {name} [OPTIONS] TRACE...")
    assert COMMANDS[name] in out
    assert [p.name for p in command_of(name).params if p.param_type_name == "option" and not p.help] == []


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("format_", ["table", "json", "ndjson", "csv", "markdown"])
def test_its_statuses(name, format_, tmp_path, capsys):
    """0 or 2 when it has answered, in every format; 1 and one line on stderr when it could not."""
    good = write_trace(tmp_path / "trace.arrow", NONFINITE)
    options = ["--format", format_, *REQUIRED.get(name, [])]
    status, out, err = run(capsys, name, good, *options)
    assert status in (0, 2)
    assert out != "" or format_ == "ndjson"  # which has a line for each item, so perhaps none
    assert err == ""
    for arguments in ([tmp_path / "none.arrow", *options], [good, *options, "--frobnicate"], [*options]):
        status, out, err = run(capsys, name, *arguments)
        assert (status, out, err.count("\n")) == (1, "", 1)
        assert err.startswith("dispatchmon: ")


def damage(path, data):
    """Yield (what, status) for a file that is damaged in every way there is; status None is 0, 1 or 2."""
    chance = random.Random(7)
    for _ in range(6):
        path.write_bytes(chance.randbytes(chance.randrange(1, 3000)))
        yield "random bytes", 1
    for length in range(0, len(data), 97 * 8):  # test_trace.py cuts at every 97th byte
        path.write_bytes(data[:length])
        yield f"cut at {length}", None
    for _ in range(20):
        damaged = bytearray(data)
        for _ in range(chance.choice((1, 8, 64))):
            damaged[chance.randrange(len(data))] = chance.randrange(256)
        path.write_bytes(damaged)
        yield "bytes overwritten", None


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_damaged_traces_end_in_one_line(name, tmp_path, capsys):
    """Whatever is wrong with the file, the command answers, or says so in one line with status 1."""
    path = write_trace(tmp_path / "trace.arrow", NONFINITE)
    for what, expected in damage(path, path.read_bytes()):
        shutil.rmtree(tmp_path / "trace.parquet", ignore_errors=True)
        (tmp_path / "trace.parquet").unlink(missing_ok=True)
        status, _, err = run(capsys, name, path, *REQUIRED.get(name, []))
        assert status == expected if expected is not None else status in (0, 1, 2), what
        errors = [line for line in err.splitlines() if not line.startswith("dispatchmon: warning: ")]
        assert len(errors) == (status == 1), (what, err)
        assert "Traceback" not in err


@pytest.mark.parametrize("name", COMMANDS)
def test_cut_trace_of_the_recorder(name, tmp_path, capsys):
    """A trace whose process was killed is read by every command, with a warning."""
    path = tmp_path / "trace.arrow"
    shutil.copy(OLD, path)
    cut(path, -3000)
    status, out, err = run(capsys, name, path, *REQUIRED.get(name, []))
    assert status in (0, 2)
    assert out != ""
    assert err.startswith("dispatchmon: warning: trace.arrow was not closed (the process was killed?): read ")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_folder_of_other_files(name, tmp_path, capsys):
    """A folder without a trace is refused in one line."""
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "data.arrow").write_bytes(b"hello")
    status, out, err = run(capsys, name, tmp_path, *REQUIRED.get(name, []))
    assert (status, out, err) == (
        1,
        "",
        f"dispatchmon: {tmp_path} holds no trace; a trace is a file that ends in .arrow\n",
    )
