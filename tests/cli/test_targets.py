"""A command destroys nothing that it was not asked to write: not even as root, with --force, or when it fails half-way."""

import os
import stat
import subprocess
import threading

import pyarrow.parquet as pq
import pytest

from command_line import COMMAND, run
from trace_factory import write_trace

WRITERS = {
    "report": ["summarize", "--format", "csv"],
    "csv": ["export", "--to", "csv"],
    "parquet": ["export", "--to", "parquet"],
    "scalars": ["export", "--to", "scalars"],
}  # fmt: skip
FOLDERS = {
    "partitions": ["export", "--to", "parquet", "--partition", "rank,step"],
    "tensorboard": ["export", "--to", "tensorboard"],
}


@pytest.fixture
def path(tmp_path):
    """A trace of three batches."""
    rows = [{"kind": "module", "role": "output", "arg": "output", "module": "m", "max": 1.0, "numel": 1}] * 9
    return write_trace(tmp_path / "trace.arrow", rows)


@pytest.fixture(params=WRITERS)
def written(request, path, tmp_path, capsys):
    """A command, and what it writes into a file."""
    command = [WRITERS[request.param][0], path, *WRITERS[request.param][1:]]
    plain = tmp_path / "plain"
    assert run(capsys, *command, "-o", plain)[0] == 0
    return command, plain.read_bytes()


def test_a_pipe_is_written_through(written, tmp_path, capsys):
    """A named pipe stays one, and its reader gets the whole."""
    command, expected = written
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    assert run(capsys, *command, "-o", pipe, "--force")[0] == 0
    reader.join(30)
    assert got == [expected]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["pipe", "plain", "trace.arrow"]


def test_standard_output_is_written_through(written, tmp_path):
    """`-o /dev/stdout` puts the rows there and nothing between them, be it a pipe or a file that the shell opened."""
    command, expected = written
    arguments = [*COMMAND, *map(str, command), "-o", "/dev/stdout"]
    assert subprocess.run(arguments, capture_output=True, check=True).stdout == expected
    target = tmp_path / "shell"
    with target.open("wb") as out:
        inode = os.fstat(out.fileno()).st_ino
        subprocess.run(arguments, stdout=out, check=True)
    assert (target.stat().st_ino, target.read_bytes()) == (inode, expected)


def test_a_link_stays_a_link(written, tmp_path, capsys):
    """What it leads to is written, in the folder and with the permissions that it has."""
    command, expected = written
    (tmp_path / "there").mkdir()
    real, link = tmp_path / "there" / "real", tmp_path / "link"
    link.symlink_to(real)  # which leads nowhere yet
    assert run(capsys, *command, "-o", link)[0] == 0
    assert (link.is_symlink(), real.read_bytes()) == (True, expected)
    real.write_text("old")
    real.chmod(0o600)
    assert run(capsys, *command, "-o", link)[0] == 1
    assert real.read_text() == "old"
    assert run(capsys, *command, "-o", link, "--force")[0] == 0
    assert (link.is_symlink(), real.read_bytes(), stat.S_IMODE(real.stat().st_mode)) == (True, expected, 0o600)
    assert [p.name for p in (tmp_path / "there").iterdir()] == ["real"]


@pytest.mark.parametrize("command", FOLDERS.values(), ids=FOLDERS)
def test_a_folder_gives_way_only_if_all_in_it_is_ours(path, tmp_path, capsys, command):
    """A file of someone else in a folder of ours keeps it, whatever its name; so does a link."""
    target = tmp_path / "out"
    command = [command[0], path, *command[1:], "-o", target, "--force"]
    assert run(capsys, *command)[0] == 0
    assert run(capsys, *command)[0] == 0
    files = sorted(p for p in target.rglob("*") if p.is_file())
    message = f"dispatchmon: {target} holds what export has not written; name another path to write to\n"
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "data.parquet").write_text("all I have")
    foreign = pq.ParquetFile(files[0]).read() if files[0].suffix == ".parquet" else None
    for name in ("rank=0/mine.parquet", "rank=0/step=0/.note", "events.txt", "rank=7"):
        mine = target / name
        mine.parent.mkdir(exist_ok=True, parents=True)
        if name == "rank=7":
            mine.symlink_to(precious)
        elif foreign is not None and mine.suffix == ".parquet":  # the same table, but not written by us
            pq.write_table(foreign.replace_schema_metadata(None), mine)
        else:
            mine.write_text("mine")
        assert run(capsys, *command) == (1, "", message)
        assert mine.exists()
        mine.unlink()
    assert run(capsys, *command)[0] == 0
    assert (precious / "data.parquet").read_text() == "all I have"


@pytest.mark.parametrize("command", FOLDERS.values(), ids=FOLDERS)
def test_a_link_to_a_folder_stays_a_link(path, tmp_path, capsys, command):
    """What it leads to is replaced."""
    link = tmp_path / "link"
    (tmp_path / "real").mkdir()
    link.symlink_to(tmp_path / "real")
    assert run(capsys, command[0], path, *command[1:], "-o", link, "--force")[0] == 0
    assert link.is_symlink()
    assert any(p.is_file() for p in (tmp_path / "real").rglob("*"))


@pytest.mark.parametrize("format_", ["json", "csv", "ndjson", "table"])
def test_a_failure_leaves_no_part_of_a_document(tmp_path, capsys, format_):
    """Of a trace whose last batch is damaged there is no file, and a file of the shell's has no half of a JSON document."""
    path = write_trace(tmp_path / "trace.arrow", [{"source": "x" * 100}] * 5000, batch_rows=1000)
    data = bytearray(path.read_bytes())
    data[data.rindex(b"dispatchmon.checksum") - 2000] ^= 1  # in the batches, before the closing one
    path.write_bytes(data)
    assert run(capsys, "show", path, "--limit", "0", "--format", format_, "-o", tmp_path / "out")[0] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["trace.arrow"]
    with (tmp_path / "shell").open("wb") as out:
        arguments = [*COMMAND, "show", str(path), "--limit", "0", "--format", format_]
        assert subprocess.run(arguments, stdout=out, stderr=subprocess.PIPE, check=False).returncode == 1
    if format_ == "json":
        assert (tmp_path / "shell").read_bytes() == b""
