"""
Where answers go: files, pipes, terminals; and what is left behind when something fails.
"""

import os
import re
import signal
import subprocess
import sys

import pytest

from command_line import COMMAND, FINITE, LINEAR, NONFINITE, on_terminal, run
from trace_factory import write_trace


@pytest.fixture
def path(tmp_path):
    """A small trace without NaN or Inf."""
    return write_trace(tmp_path / "trace.arrow", FINITE)


def test_output_file(path, tmp_path, capsys):
    """With -o the answer is in the file, and stdout is empty."""
    target = tmp_path / "summary.csv"
    assert run(capsys, "summarize", path, "--format", "csv", "-o", target) == (0, "", "")
    assert target.read_text().startswith("op,calls,writes,time_ns,rows,magnitude,nan,inf\n")
    assert oct(target.stat().st_mode & 0o777) == oct(0o666 & ~umask())


def umask():
    """The permissions that new files do not get."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_output_to_dash_is_stdout(path, tmp_path, monkeypatch, capsys):
    """`-o -` is stdout, not a file of that name."""
    monkeypatch.chdir(tmp_path)
    assert run(capsys, "summarize", path, "-o", "-")[1].startswith("operator ")
    assert not (tmp_path / "-").exists()


def test_nothing_is_overwritten_without_force(path, tmp_path, capsys):
    """A file that exists stays as it is, unless --force is given."""
    target = tmp_path / "summary.txt"
    target.write_text("mine")
    assert run(capsys, "summarize", path, "-o", target) == (
        1,
        "",
        f"dispatchmon: {target} exists already; --force overwrites it\n",
    )
    assert target.read_text() == "mine"
    assert run(capsys, "summarize", path, "-o", target, "--force")[0] == 0
    assert target.read_text().startswith("operator ")


def test_failure_leaves_no_half_written_report(path, tmp_path, capsys):
    """When a command fails, there is no report, and with --force the older one is as it was."""
    path.write_bytes(path.read_bytes().replace(b"\x28\xb5\x2f\xfd", bytes(4), 20))
    folder = tmp_path / "reports"
    folder.mkdir()
    (folder / "old.txt").write_text("old")
    why = "its checksum is another, so it has changed since it was written"
    message = f"dispatchmon: {path} is damaged: {why}; record it again\n"
    for arguments in (["-o", folder / "new.txt"], ["-o", folder / "old.txt", "--force"]):
        status, out, err = run(capsys, "summarize", path, *arguments)
        assert (status, out, err) == (1, "", message)
    assert [(p.name, p.read_text()) for p in folder.iterdir()] == [("old.txt", "old")]


def test_trace_is_never_overwritten_by_its_report(path, tmp_path, capsys):
    """Not even --force lets a report replace the trace that it is about, be it through a link."""
    before = path.read_bytes()
    link = tmp_path / "link"
    link.symlink_to(path)
    assert run(capsys, "summarize", path, "-o", link, "--force") == (
        1,
        "",
        f"dispatchmon: {link} is the trace itself; name another path to write to\n",
    )
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (".", ". is a folder; name a file to write to"),
        ("none/summary.txt", "there is no folder none to write summary.txt into"),
    ],
)
def test_output_that_cannot_be_written(path, tmp_path, monkeypatch, capsys, target, message):
    """A place that cannot be written to is named before anything is read."""
    monkeypatch.chdir(tmp_path)
    assert run(capsys, "summarize", path, "-o", target) == (1, "", f"dispatchmon: {message}\n")


def test_output_to_a_device(path, capsys):
    """A device is written to as it is, and stays a device."""
    assert run(capsys, "summarize", path, "-o", "/dev/null") == (0, "", "")
    assert not os.path.isfile("/dev/null")


def test_full_disk_is_one_line(path):
    """A full disk is said in one line."""
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COMMAND, "summarize", str(path)], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (1, "dispatchmon: No space left on device\n")


@pytest.mark.slow
def test_closed_pipe_is_quiet(tmp_path):
    """A reader that leaves early, as `head` does, is no failure."""
    rows = [{**LINEAR, "module": f"m{i}" * 20} for i in range(3000)]
    path = write_trace(tmp_path / "trace.arrow", rows, batch_rows=1000)
    for format_ in ("table", "json", "csv"):
        process = subprocess.Popen(
            [*COMMAND, "summarize", str(path), "--by", "module", "--top", "0", "--format", format_],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        process.stdout.read(10)
        process.stdout.close()
        assert (process.wait(), process.stderr.read()) == (0, b"")
        process.stderr.close()


def test_interrupt_is_quiet(tmp_path):
    """Ctrl-C ends a long scan with status 130 and without a word, and leaves no report behind."""
    folder = tmp_path / "reports"
    folder.mkdir()
    script = """
import sys, time
from dispatchmon.reading.batches import BatchReader
from dispatchmon_cli import main
read = BatchReader.read
def slowly(*a, **k):
    print("reading", file=sys.stderr, flush=True)
    time.sleep(0.5)
    return read(*a, **k)
BatchReader.read = slowly
sys.exit(main(sys.argv[1:]))
"""
    path = write_trace(tmp_path / "trace.arrow", FINITE)
    process = subprocess.Popen(
        [sys.executable, "-c", script, "summarize", str(path), "-o", str(folder / "summary.txt")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr.readline() == "reading\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", "")
    assert list(folder.iterdir()) == []


def test_piped_output_is_plain_and_whole(path):
    """Into a pipe there are no colors, and names are not cut, however narrow the terminal claims to be."""
    done = subprocess.run(
        [*COMMAND, "summarize", str(path), "--by", "module"],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "40", "TERM": "xterm-256color"},
        check=True,
    )
    assert "\x1b" not in done.stdout
    assert "encoder.layers.0.attention.projection" in done.stdout
    assert not any(line.endswith(" ") for line in done.stdout.splitlines())


def test_table_fits_the_terminal(path):
    """On a terminal of 60 columns names are cut in their middle, and no line of the table is longer."""
    status, shown = on_terminal(["summarize", path, "--by", "module", "--no-color"], 60)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown).splitlines()[:4]
    assert status == 0
    assert all(len(line) <= 60 for line in plain)
    assert [line.split("  ")[0] for line in plain] == ["module", "(model)", "encoder.…rojection", "(outside)"]


@pytest.mark.slow
def test_colors_only_where_they_are_wanted(tmp_path):
    """On a terminal a NaN count is red; with --no-color nothing is."""
    path = write_trace(tmp_path / "trace.arrow", NONFINITE)
    assert "\x1b[31m" in on_terminal(["summarize", path], 100)[1]
    assert "\x1b[31m" not in on_terminal(["summarize", path, "--no-color"], 100)[1]


def test_ascii_output_does_not_fail(path):
    """A stream that cannot show a character gets an escape instead of a traceback."""
    done = subprocess.run(
        [*COMMAND, "summarize", str(path)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "1.0 \\xb5s" in done.stdout


def test_control_characters_in_a_trace_are_shown_not_obeyed(tmp_path, capsys):
    """An escape sequence or markup in a name reaches the terminal as text."""
    path = write_trace(tmp_path / "trace.arrow", [{"module": "a\x1b[31m[red]b"}])
    out = run(capsys, "summarize", path, "--by", "module")[1]
    assert "a\\x1b[31m[red]b" in out
    assert "\x1b" not in out
