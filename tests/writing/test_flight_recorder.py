"""
`keep_last`: the last steps of a run of any length, on a bounded disk.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
import torch

from dispatchmon import DispatchMonitor
from dispatchmon.recording import handover
from dispatchmon.schema import parts_folder
from dispatchmon.trace import open_trace


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch):
    monkeypatch.setattr(handover, "BATCH_ROWS", 50)


def size_of(folder: Path) -> int:
    """Bytes of the parts, some of which are being deleted meanwhile."""
    total = 0
    for part in folder.glob("*.arrow"):
        with suppress(FileNotFoundError):
            total += part.stat().st_size
    return total


def run(
    path: Path, n: int, bad_steps: tuple[int, ...] = (), value: float = float("nan"), fail_at: int = -1, **settings
):
    """Record steps of two operators, of which some make a bad value; return the largest size of the folder meanwhile."""
    x, largest = torch.ones(8), 0
    with DispatchMonitor(None, path, quiet=True, **settings) as monitor:
        for step in range(n):
            y = x.mul(0).log() if step in bad_steps and value == float("-inf") else x.mul(
                value if step in bad_steps else step)  # fmt: skip
            if step == fail_at:
                raise ZeroDivisionError
            y.add(1)
            monitor.step()
            if step % 100 == 99:
                largest = max(largest, size_of(parts_folder(path)))
    assert monitor.error is None, monitor.error
    return largest


def steps_of(path: Path) -> list[int]:
    return sorted(set(open_trace(path).scan(["step"]).read_all()["step"].to_pylist()))


def test_the_last_steps_are_left(tmp_path):
    """Of 400 steps the last five are left, whole, as one complete trace that says what was let go."""
    path = tmp_path / "trace.arrow"
    run(path, 400, keep_last=5)
    trace = open_trace(path)
    rows = trace.scan(["step", "op", "arguments"]).read_all().to_pylist()
    assert [row["step"] for row in rows if row["op"] == "aten.mul.Tensor" and row["arguments"]] == [
        395,
        396,
        397,
        398,
        399,
    ]
    assert [row["step"] for row in rows if row["op"] == "aten.add.Tensor" and row["arguments"]] == [
        395,
        396,
        397,
        398,
        399,
    ]
    closing = trace.files[0].closing
    assert (closing["complete"], closing["events"], closing["rows"], closing["steps"], closing["writes"]) == (
        True,
        10,
        20,
        5,
        0,
    )
    assert trace.warnings == (
        "trace.arrow does not hold everything: 790 operators of steps before the last that keep_last keeps",
    )
    assert [p.name for p in tmp_path.iterdir()] == ["trace.arrow"]


@pytest.mark.slow
def test_the_disk_does_not_fill(tmp_path):
    """While 3000 steps run, there are never more than a few parts, where all of them would take a megabyte."""
    assert 5_000 < run(tmp_path / "few.arrow", 3000, keep_last=5) < 60_000
    run(tmp_path / "all.arrow", 3000)
    assert (tmp_path / "all.arrow").stat().st_size > 800_000


@pytest.mark.parametrize(("value", "what"), [(float("nan"), "nan"), (float("-inf"), "inf")])
def test_the_steps_up_to_the_first_bad_value_are_kept_for_good(tmp_path, value, what):
    """They are there beside the last ones; later bad values do not fill the disk."""
    path = tmp_path / "trace.arrow"
    run(path, 400, (50, *range(60, 300)), value, keep_last=4)
    assert steps_of(path) == [47, 48, 49, 50, 396, 397, 398, 399]
    assert open_trace(path).files[0].closing["kept_for_good"] == {what: [47, 50]}


def with_dropout_and_masks(path: Path, bad: int, masked: bool) -> DispatchMonitor:
    """A dropout's unwritten memory, full of NaN, in step 5; in step `bad` a NaN of the program's own; masks all the time."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.use_deterministic_algorithms(True)
    try:
        with DispatchMonitor(model, path, quiet=True, keep_last=3) as monitor:
            for step in range(60):
                model.train(step == 5)
                optimizer.zero_grad()
                y = model(torch.randn(3, 4))
                if masked:
                    y = y + torch.ones(3, 3).tril().log().softmax(-1).sum()
                if step == bad:
                    y = y + torch.tensor(-1.0).log()
                y.pow(2).mean().backward()
                optimizer.step()
    finally:
        torch.use_deterministic_algorithms(False)
    assert monitor.error is None, monitor.error
    return monitor


@pytest.mark.slow
@pytest.mark.parametrize("masked", [False, True])
def test_what_does_no_harm_does_not_take_the_place_of_what_does(tmp_path, masked):
    """The NaN of step 20 is kept, not the memory that dropout was about to write in step 5, nor a mask of -Inf."""
    monitor = with_dropout_and_masks(tmp_path / "t.arrow", 20, masked)
    assert steps_of(monitor.path) == [18, 19, 20, 57, 58, 59]
    assert monitor.trace.files[0].closing["kept_for_good"] == {"nan": [18, 20]}
    first = monitor.trace.nonfinite().first
    assert (first.op, first.step) == ("aten.log.default", 20)


@pytest.mark.slow
def test_where_nothing_does_harm_nothing_is_kept_for_good(tmp_path):
    """Unwritten memory and masks, and no more."""
    monitor = with_dropout_and_masks(tmp_path / "t.arrow", -1, masked=True)
    assert steps_of(monitor.path) == [57, 58, 59]
    assert monitor.trace.files[0].closing["kept_for_good"] == {}


def test_an_early_bad_value_keeps_the_steps_there_were(tmp_path):
    """In step 1 only two steps can be kept."""
    path = tmp_path / "trace.arrow"
    run(path, 200, (1,), keep_last=4)
    assert steps_of(path) == [0, 1, 196, 197, 198, 199]


def test_an_exception_leaves_the_steps_before_it(tmp_path):
    """The step that failed is the last one, and the trace says why it ends there."""
    path = tmp_path / "trace.arrow"
    with pytest.raises(ZeroDivisionError):
        run(path, 400, fail_at=250, keep_last=3)
    assert steps_of(path) == [248, 249, 250]
    assert open_trace(path).warnings[0] == "trace.arrow is incomplete: ZeroDivisionError in the training loop"


def test_steps_that_are_not_recorded_do_not_count(tmp_path):
    """With every tenth step recorded, the last three of these are left."""
    path = tmp_path / "trace.arrow"
    run(path, 500, steps="0::10", keep_last=3)
    assert steps_of(path) == [470, 480, 490]


def test_large_steps_in_many_parts(tmp_path, monkeypatch):
    """A step that fills several batches is kept whole."""
    monkeypatch.setattr(handover, "BATCH_ROWS", 3)
    path = tmp_path / "trace.arrow"
    run(path, 40, keep_last=2)
    assert [row["step"] for row in open_trace(path).scan(["step"]).read_all().to_pylist()] == [38] * 4 + [39] * 4


def test_a_short_run_and_an_empty_one(tmp_path):
    """Fewer steps than asked for are all there; none leave an empty, complete trace."""
    run(tmp_path / "short.arrow", 3, keep_last=10)
    run(tmp_path / "empty.arrow", 0, keep_last=10)
    assert (steps_of(tmp_path / "short.arrow"), steps_of(tmp_path / "empty.arrow")) == ([0, 1, 2], [])
    assert open_trace(tmp_path / "empty.arrow").complete


def test_parts_of_a_killed_run_are_not_taken_for_those_of_a_later_one(tmp_path):
    """A trace that overwrites one which was never closed does not inherit its parts."""
    path = tmp_path / "trace.arrow"
    parts_folder(path).mkdir()
    (parts_folder(path) / "000000000.arrow").write_bytes(b"old")
    run(path, 10)
    assert not parts_folder(path).exists()
    assert steps_of(path) == list(range(10))


def test_parts_that_cannot_be_joined_stay(tmp_path, monkeypatch):
    """When there is no room to join them, the parts are left and read as they are."""
    from dispatchmon.writing.writer import TraceWriter

    path, x, write = tmp_path / "trace.arrow", torch.ones(2), TraceWriter.write

    def full(self, batch):
        if self.path.name == "joined.part":
            raise OSError(28, "No space left on device")
        write(self, batch)

    monkeypatch.setattr(TraceWriter, "write", full)
    monitor = DispatchMonitor(None, path, keep_last=3, quiet=True)
    with pytest.warns(RuntimeWarning, match="No space left on device"), monitor:  # noqa: PT031
        for _ in range(100):
            x.mul(2)
            monitor.step()
    assert isinstance(monitor.error, OSError)
    assert set(steps_of(path)) >= {97, 98, 99}
    assert "from .trace.arrow.parts" in open_trace(path).warnings[0]
