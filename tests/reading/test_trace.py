"""
Opening traces: complete, cut, damaged, foreign, of another version, of several ranks.
"""

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from dispatchmon.errors import DispatchmonError, NotATraceError, TraceNotFoundError, TraceVersionError
from dispatchmon.reading.messages import walk
from dispatchmon.schema import METADATA_KEY, SCHEMA
from dispatchmon.trace import open_trace
from trace_factory import cut, make_rows, write_trace

TEN = [{"step": i // 5, "nan": i} for i in range(10)]


def test_complete_trace(tmp_path):
    """A closed trace is complete, warns of nothing, and gives back the rows that were written."""
    trace = open_trace(write_trace(tmp_path / "trace.arrow", TEN))
    assert (trace.complete, trace.warnings, trace.ranks, trace.rows) == (True, (), (0,), 10)
    assert trace.scan().read_all().to_pylist() == make_rows(TEN)
    file = trace.files[0]
    assert (file.metadata["torch"], file.closing["events"], file.cut, file.batches) == ("2.13.0", 10, False, 4)


def test_scan_gives_only_the_columns_asked_for_in_their_order(tmp_path):
    """A scan of two columns yields these two, in the order asked for."""
    table = open_trace(write_trace(tmp_path / "trace.arrow", TEN)).scan(["nan", "event"]).read_all()
    assert table.column_names == ["nan", "event"]
    assert table["nan"].to_pylist() == list(range(10))


def test_scan_does_not_decompress_other_columns(tmp_path):
    """Of a file without checksums, damage in a column that is not asked for goes unnoticed: it is not decompressed."""
    noise = [f"{i * 7919 % 1000003}-{i}" for i in range(5000)]
    for version in ("1.0", "1.2"):
        path = write_trace(
            tmp_path / f"{version}.arrow", [{"source": s} for s in noise], metadata={"format": version}, batch_rows=5000
        )
        data = bytearray(path.read_bytes())
        frames = [i for i in range(len(data)) if data[i : i + 4] == b"\x28\xb5\x2f\xfd"]  # zstd's magic number
        largest = max(zip(frames, [*frames[1:], len(data)], strict=True), key=lambda ends: ends[1] - ends[0])
        for i in range(largest[0], largest[1] - 1000):
            data[i] = 0
        path.write_bytes(data)
    trace = open_trace(tmp_path / "1.0.arrow")
    assert trace.scan(["event"]).read_all().num_rows == 5000
    with pytest.raises(NotATraceError, match="batch 1 of 2 cannot be read"):
        trace.scan(["source"]).read_all()
    with pytest.raises(NotATraceError, match="its checksum is another"):
        open_trace(tmp_path / "1.2.arrow").scan(["event"]).read_all()


def test_scan_reads_one_batch_at_a_time(tmp_path):
    """The progress after the first batch of five is one fifth: the others are not read ahead."""
    done = []
    reader = open_trace(write_trace(tmp_path / "trace.arrow", [{}] * 16)).scan(["event"], on_progress=done.append)
    assert reader.read_next_batch().num_rows == 4
    assert done == []
    reader.read_next_batch()
    assert done == [0.2]
    reader.read_all()
    assert done == [0.2, 0.4, 0.6, 0.8, 1.0]


def test_scan_of_unknown_column_is_an_error(tmp_path):
    """Asking for a column that no trace has names the columns there are."""
    with pytest.raises(ValueError, match=r"^a trace has no column 'colour'; it has event, kind, rank, "):
        open_trace(write_trace(tmp_path / "trace.arrow")).scan(["colour"])


def test_cut_file_is_read_up_to_the_cut(tmp_path):
    """Of a file whose process was killed the whole batches are read, and a warning says how many rows these are."""
    path = write_trace(tmp_path / "trace.arrow", TEN, closed=False)
    with pa.OSFile(str(path)) as source:
        third_batch = pa.ipc.open_file(source).get_batch(2)
    assert third_batch.num_rows == 2
    data = path.read_bytes()
    footer = int.from_bytes(data[-10:-6], "little") + 10
    trace = open_trace(cut(path, len(data) - footer - 200))
    assert trace.warnings == ("trace.arrow was not closed (the process was killed?): read 8 rows up to the cut",)
    assert (trace.complete, trace.rows, trace.files[0].closing) == (False, 8, None)
    assert trace.scan(["nan", "event"]).read_all().to_pylist() == [{"nan": i, "event": i} for i in range(8)]


@pytest.mark.slow
def test_every_cut_is_read_or_refused_in_one_line(tmp_path):
    """Cut at every 97th byte, a trace yields the rows of its whole batches or one clear NotATraceError."""
    path = write_trace(tmp_path / "trace.arrow", TEN)
    data, seen = path.read_bytes(), set()
    for length in range(0, len(data), 97):
        path.write_bytes(data[:length])
        try:
            trace = open_trace(path)
        except NotATraceError as error:
            assert "\n" not in str(error)
            seen.add("refused")
        else:
            rows = trace.scan().read_all().to_pylist()
            assert rows == make_rows(TEN)[: len(rows)]
            assert len(trace.warnings) == 1
            assert f"read {len(rows)} rows up to the cut" in trace.warnings[0]
            seen.add(len(rows))
    assert seen == {"refused", 0, 4, 8, 10}


@pytest.mark.slow
def test_damaged_bytes_never_end_in_another_error(tmp_path):
    """Bytes overwritten at random lead to a reading or to a NotATraceError, in a process that lives on."""
    path = write_trace(tmp_path / "trace.arrow", [{"module": "m" * (i % 3), "shape": [i]} for i in range(12)])
    script = """
import random, sys
from dispatchmon.errors import NotATraceError, TraceVersionError
from dispatchmon.trace import open_trace
path = sys.argv[1]
data = open(path, "rb").read()
for seed in range(8):
    chance, met = random.Random(seed), 0
    for _ in range(60):
        damaged = bytearray(data)
        for _ in range(chance.choice((1, 2, 8, 64))):
            damaged[chance.randrange(len(data))] = chance.choice((0, 1, 127, 128, 255))
        open(path, "wb").write(damaged)
        try:
            open_trace(path).scan().read_all()
        except (NotATraceError, TraceVersionError):
            met += 1
    print(f"survived {seed}", met > 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False
    )
    survived = "".join(f"survived {seed} True\n" for seed in range(8))
    assert (done.stdout, done.stderr, done.returncode) == (survived, "", 0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty, so it is not a trace"),
        (b"ARR", "is not an Arrow file, so it is not a trace"),
        (b"event,op\n1,relu\n", "is not an Arrow file, so it is not a trace"),
        (bytes(range(256)) * 9, "is not an Arrow file, so it is not a trace"),
        (b"ARROW1\0\0", "is cut or damaged before its first row, so there is nothing to read"),
        (b"ARROW1\0\0" + bytes(range(256)) * 9, "is cut or damaged before its first row, so there is nothing to read"),
        (b"ARROW1\0\0" + b"\xff" * 999, "is cut or damaged before its first row, so there is nothing to read"),
    ],
)
def test_other_files_are_refused(tmp_path, content, message):
    """A file that is no trace is refused in one line that says why."""
    path = tmp_path / "trace.arrow"
    path.write_bytes(content)
    with pytest.raises(NotATraceError) as met:
        open_trace(path)
    assert str(met.value) == f"{path} {message}"


def test_foreign_arrow_file_is_refused(tmp_path):
    """An Arrow file that another program wrote is refused as such."""
    path = tmp_path / "data.arrow"
    table = pa.table({"event": [1, 2]})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(NotATraceError) as met:
        open_trace(path)
    assert str(met.value) == f"{path} is an Arrow file, but not one that dispatchmon wrote"


def test_wrong_column_type_is_refused(tmp_path):
    """A column of another type than the format's is named with both types."""
    schema = SCHEMA.set(SCHEMA.get_field_index("nan"), pa.field("nan", pa.float64()))
    path = write_trace(tmp_path / "trace.arrow", schema=schema)
    with pytest.raises(NotATraceError) as met:
        open_trace(path)
    assert str(met.value) == f"{path} is damaged: its column nan is double, not int64; record it again"


def test_missing_column_is_refused(tmp_path):
    """A file of this very version that lacks a column is damaged."""
    path = write_trace(tmp_path / "trace.arrow", schema=SCHEMA.remove(SCHEMA.get_field_index("nan")))
    with pytest.raises(NotATraceError) as met:
        open_trace(path)
    assert str(met.value) == f"{path} is damaged: it has the column nan not at all; record it again"


def test_missing_column_of_an_older_minor_version_is_null(tmp_path, monkeypatch):
    """What an older minor version did not record reads as null, in complete and in cut files."""
    monkeypatch.setattr("dispatchmon.reading.opening.COLUMNS_MINOR", 1)
    schema = SCHEMA.remove(SCHEMA.get_field_index("nan"))
    path = write_trace(tmp_path / "trace.arrow", TEN, schema=schema, metadata={"format": "1.0"})
    assert open_trace(path).scan(["nan", "event"]).read_all()["nan"].to_pylist() == [None] * 10
    assert open_trace(path).scan(["nan"]).read_all()["nan"].to_pylist() == [None] * 10
    cut(path, -10)
    assert open_trace(path).scan(["nan"]).read_all()["nan"].to_pylist() == [None] * 10


def test_newer_minor_version_is_read(tmp_path):
    """A newer minor version is read, without the columns that this version does not know."""
    schema = SCHEMA.insert(0, pa.field("colour", pa.utf8()))
    path = write_trace(tmp_path / "trace.arrow", TEN, schema=schema, metadata={"format": "1.7"})
    trace = open_trace(path)
    assert trace.warnings == ()
    assert trace.scan().read_all().to_pylist() == make_rows(TEN)


def test_newer_major_version_is_refused(tmp_path):
    """A newer major version is refused with both versions and what to do."""
    path = write_trace(tmp_path / "trace.arrow", metadata={"format": "2.1", "dispatchmon": "3.0.0"})
    with pytest.raises(TraceVersionError) as met:
        open_trace(path)
    assert str(met.value) == (
        f"{path} has trace format 2.1, written by dispatchmon 3.0.0; this dispatchmon reads format 1.x: "
        "upgrade dispatchmon"
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it is not JSON, or too deeply nested"),
        ("{", "it is not JSON, or too deeply nested"),
        ("[" * 100_000, "it is not JSON, or too deeply nested"),
        ('{"format": "1.0", "rank": NaN}', "it is not JSON, or too deeply nested"),
        ('{"format": "1.0", "rank": 1%s}' % ("0" * 400), "it is not JSON, or too deeply nested"),
        ("[]", "it cannot be such a list"),
        ("{}", "format is missing"),
        ('{"format": "one"}', None),
        ('{"format": "1"}', None),
        ('{"format": "1.0", "rank": "x"}', 'rank cannot be "x"'),
        ('{"format": "1.0", "rank": -1}', "rank cannot be -1"),
        ('{"format": "1.0", "world_size": 0}', "world_size cannot be 0"),
        ('{"format": "1.0", "world_size": 9223372036854775808}', "world_size cannot be 9223372036854775808"),
        ('{"format": "1.0", "modules": [{"name": "a", "class": "B"}, {"name": 3}]}', "modules[1].name cannot be 3"),
        ('{"format": "1.0", "modules": [{"name": "a"}]}', "modules[0].class is missing"),
        ('{"format": "1.0", "parameters": {}}', "parameters cannot be an object"),
        ('{"format": "1.0", "settings": {"phases": "forward"}}', 'settings.phases cannot be "forward"'),
    ],
)
def test_unreadable_metadata_is_refused(tmp_path, text, why):
    """Metadata that is not what the format says makes the file a damaged one."""
    path = tmp_path / "trace.arrow"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, SCHEMA.with_metadata({METADATA_KEY: text})):
        pass
    with pytest.raises(NotATraceError) as met:
        open_trace(path)
    reason = f" ({why})" if why else ""
    assert str(met.value) == f"{path} is damaged: its metadata cannot be read{reason}; record it again"


@pytest.mark.parametrize("text", [b'{"format": "1.0", "model": "a\\ud800b"}', b'{"format": "1.0", "model": "a\xed\xa0\x80b"}'])
def test_half_of_a_pair_in_metadata_is_read_as_an_escape(tmp_path, text):
    """A trace of before 1.2 may say it, of a name that UTF-8 cannot hold; nobody could print it."""
    path = tmp_path / "trace.arrow"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, SCHEMA.with_metadata({METADATA_KEY: text})):
        pass
    assert open_trace(path).files[0].metadata["model"] == "a\\ud800b"


def test_no_such_file(tmp_path):
    """A path that does not exist is named."""
    with pytest.raises(TraceNotFoundError) as met:
        open_trace(tmp_path / "none.arrow")
    assert str(met.value) == f"{tmp_path / 'none.arrow'} does not exist"
    assert isinstance(met.value, FileNotFoundError)


def test_folder_without_traces(tmp_path):
    """A folder with no trace in it says what a trace looks like."""
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(TraceNotFoundError) as met:
        open_trace(tmp_path)
    assert str(met.value) == f"{tmp_path} holds no trace; a trace is a file that ends in .arrow"


def test_device_is_not_a_trace():
    """A device is refused before it is read."""
    with pytest.raises(NotATraceError, match=r"^/dev/zero is not a file, so it is not a trace$"):
        open_trace("/dev/zero")


def test_incomplete_trace_says_why(tmp_path):
    """The reason in the closing statement becomes the warning."""
    path = write_trace(tmp_path / "trace.arrow", closing={"complete": False, "reason": "max_bytes was reached"})
    trace = open_trace(path)
    assert trace.warnings == ("trace.arrow is incomplete: max_bytes was reached",)
    assert not trace.complete


def test_missing_closing_statement_is_said(tmp_path):
    """A file with a footer but no closing statement may lack rows, and says so."""
    trace = open_trace(write_trace(tmp_path / "trace.arrow", closed=False))
    assert trace.warnings == ("trace.arrow has no closing statement: rows may be missing at its end",)
    assert (trace.complete, trace.rows) == (False, None)


def test_skipped_counts_are_said(tmp_path):
    """Everything that the trace does not hold is warned of, by reason; memory that nothing had written is no loss."""
    skipped = {"compiled regions": 12, "values without statistics": 1, "nested tensors": 0}
    skipped["values not there yet (unwritten memory, a collective in flight)"] = 180
    trace = open_trace(write_trace(tmp_path / "trace.arrow", closing={"skipped": skipped}))
    assert trace.warnings == ("trace.arrow does not hold everything: 12 compiled regions, 1 values without statistics",)
    assert trace.complete
    assert trace.files[0].skipped == {
        "compiled regions": 12,
        "values without statistics": 1,
        "values not there yet (unwritten memory, a collective in flight)": 180,
    }


def write_ranks(folder, ranks, world_size):
    """Write a trace of two rows for each of these ranks."""
    for rank in ranks:
        write_trace(
            folder / f"trace.rank{rank}.arrow",
            [{"rank": rank, "nan": rank}] * 2,
            metadata={"rank": rank, "world_size": world_size},
        )


def test_folder_is_one_run(tmp_path):
    """The files of a folder are read as one run, in order of rank."""
    write_ranks(tmp_path, [10, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9], 11)
    trace = open_trace(tmp_path)
    assert (trace.ranks, trace.warnings, trace.complete, trace.rows) == (tuple(range(11)), (), True, 22)
    assert trace.scan(["rank"]).read_all()["rank"].to_pylist()[::2] == list(range(11))
    assert trace.scan(["nan"], ranks=[1, 10]).read_all()["nan"].to_pylist() == [1, 1, 10, 10]


def test_missing_ranks_are_said(tmp_path):
    """Ranks of the run whose files are not given are named."""
    write_ranks(tmp_path, [0, 2], 4)
    trace = open_trace([tmp_path / "trace.rank0.arrow", tmp_path / "trace.rank2.arrow"])
    assert trace.warnings == ("2 of 4 ranks are missing: 1, 3",)
    assert not trace.complete


def test_a_cut_rank_is_said(tmp_path):
    """Of the rank whose process was killed the rows up to the cut are read, and the warning names its file."""
    write_ranks(tmp_path, [0, 1], 2)
    cut(tmp_path / "trace.rank1.arrow", -10)
    trace = open_trace(tmp_path)
    assert trace.warnings == ("trace.rank1.arrow was not closed (the process was killed?): read 2 rows up to the cut",)
    assert (trace.complete, trace.rows, trace.ranks) == (False, 4, (0, 1))


def test_two_files_of_one_rank_are_two_runs(tmp_path):
    """Two files with the same rank cannot be one run, and both are named."""
    write_trace(tmp_path / "trace.arrow")
    write_trace(tmp_path / "trace-2.arrow")
    with pytest.raises(DispatchmonError) as met:
        open_trace(tmp_path)
    assert str(met.value) == (
        f"{tmp_path / 'trace-2.arrow'} and {tmp_path / 'trace.arrow'} both hold rank 0, so they are of different runs; "
        "name one of them"
    )


def test_same_file_twice_is_once(tmp_path):
    """A file that is named twice is read once."""
    path = write_trace(tmp_path / "trace.arrow")
    assert open_trace([path, str(path)]).rows == 1


def test_foreign_files_in_a_folder_are_left_out_and_said(tmp_path):
    """A file in the folder that is no trace is left out with a warning."""
    write_trace(tmp_path / "trace.arrow")
    (tmp_path / "data.arrow").write_bytes(b"hello")
    trace = open_trace(tmp_path)
    assert trace.warnings == (f"left out: {tmp_path / 'data.arrow'} is not an Arrow file, so it is not a trace",)
    assert trace.ranks == (0,)


def test_file_that_grows_is_read_as_it_was(tmp_path):
    """Of a file that is still being written, a scan yields the rows that were there when it was opened."""
    path = write_trace(tmp_path / "trace.arrow", TEN)
    whole = path.read_bytes()
    cut(path, len(whole) // 2)
    trace = open_trace(path)
    rows = trace.rows
    path.write_bytes(whole[:-20])
    assert 0 < rows < 10
    assert trace.scan(["event"]).read_all().num_rows == rows


def test_reading_needs_no_torch(tmp_path):
    """Opening, scanning and summarizing a trace leaves torch unloaded."""
    path = write_trace(tmp_path / "trace.arrow", TEN)
    script = (
        "import sys, dispatchmon; from dispatchmon.analysis.summary import summarize; "
        "t = dispatchmon.open_trace(sys.argv[1]); summarize(t); t.scan().read_all(); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_another_reader_can_verify_the_checksums(tmp_path):
    """The example of docs/format.md, run as it stands: right for each batch of a trace, and damaged for the one that is."""
    script = [sys.executable, str(Path(__file__).resolve().parents[2] / "docs" / "verify_checksums.py")]
    path = write_trace(tmp_path / "trace.arrow", [{"op": f"aten.op{i}.default"} for i in range(9)])

    def said():
        done = subprocess.run([*script, str(path)], capture_output=True, text=True, check=True)
        return [line.split(": ")[1] for line in done.stdout.splitlines()]

    assert said() == ["right"] * 4
    with path.open("rb") as file:
        second = walk(file)[0][2]
    data = bytearray(path.read_bytes())
    data[second.stop - 3] ^= 1
    path.write_bytes(data)
    assert said() == ["right", "damaged", "right", "right"]
