"""Every bad argument gets one clear line, word for word; nothing is changed by a monitor that could not be made."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from dispatchmon import DispatchMonitor, MonitorStateError, SettingError, TraceExistsError
from recorded import events, record

MODEL = nn.Sequential(nn.Linear(2, 2), nn.ReLU())


@pytest.mark.parametrize(("arguments", "settings", "message"), [
    (("trace.arrow",), {}, "model is a str, not a torch.nn.Module; is it the path? write DispatchMonitor(model, path)"),
    ((torch.ones(1),), {}, "model is a Tensor, not a torch.nn.Module"),
    ((MODEL,), {"stats": ("min", "median")},
     "stats: 'median' is not known; choose from min, max, mean, std, norm, nan, inf, posinf, zero"),
    ((MODEL,), {"record": ("everything",)}, "record: 'everything' is not known; choose from ops, modules, parameters"),
    ((MODEL,), {"phases": ()}, "phases is empty; choose from forward, backward, recompute, optimizer"),
    ((MODEL,), {"steps": "ten"}, "steps is 'ten': give \"START:STOP:EVERY\", as \"0:100:10\"; each may be left out"),
    ((MODEL,), {"steps": "5:5"}, "steps is '5:5': it selects no step; START is at least 0, STOP above START, EVERY at least 1"),
    ((MODEL,), {"steps": 10}, "steps is 10: give \"START:STOP:EVERY\", as \"0:100:10\", or a function of the step"),
    ((nn.Sequential(nn.Linear(1, 1)),), {"modules": "00"}, "modules: no module of the model is called '00'; near matches: 0"),
    ((MODEL,), {"keep_last": 0}, "keep_last is 0: give the number of recorded steps to keep, at least 1, or None"),
    ((MODEL,), {"max_bytes": "1GB"}, "max_bytes is '1GB': give the size in bytes at which to stop, at least 1, or None"),
    ((MODEL,), {"ops": ()}, "ops is (): give a glob, as \"*.attn\", or a list of globs"),
])  # fmt: skip
def test_setting_error(arguments, settings, message) -> None:
    """What is wrong and what to do, in one line."""
    with pytest.raises(SettingError) as caught:
        DispatchMonitor(*arguments, **settings)
    assert str(caught.value) == message
    assert isinstance(caught.value, ValueError)


def test_existing_output_is_not_overwritten(tmp_path: Path) -> None:
    """An explicit path that exists is an error that names the way out, and the file keeps its bytes."""
    path = tmp_path / "trace.arrow"
    path.write_bytes(b"precious")
    with pytest.raises(TraceExistsError) as caught, DispatchMonitor(MODEL, path):
        pass
    assert str(caught.value) == f"{path} exists already: give another path, or overwrite=True to replace it"
    assert path.read_bytes() == b"precious"
    with DispatchMonitor(MODEL, path, overwrite=True, quiet=True):
        MODEL(torch.ones(1, 2))
    assert path.read_bytes()[:6] == b"ARROW1"


def test_default_path_never_collides(tmp_path: Path, monkeypatch) -> None:
    """With no path the next free name is taken; entered again, a monitor writes the next one."""
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        with DispatchMonitor(quiet=True):
            pass
    again = DispatchMonitor(path="again.arrow", quiet=True)
    for _ in range(2):
        with again:
            pass
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "again-2.arrow",
        "again.arrow",
        "trace-2.arrow",
        "trace.arrow",
    ]


def test_monitor_used_out_of_turn(tmp_path: Path) -> None:
    """Entering an open monitor and stepping a closed one are errors that say so."""
    monitor = DispatchMonitor(MODEL, tmp_path / "t.arrow", quiet=True)
    with pytest.raises(MonitorStateError, match=r"^step\(\) was called outside the monitor's with block$"):
        monitor.step()
    with (
        monitor,
        pytest.raises(MonitorStateError, match="^this monitor is open already; make another one to nest them$"),
    ):
        monitor.__enter__()
    with pytest.raises(MonitorStateError):
        monitor.step()


def test_an_unwritable_place_warns_once_and_training_goes_on(tmp_path: Path) -> None:
    """The cause is in the warning and in `monitor.error`; the model ran."""
    (tmp_path / "file").write_text("")
    monitor = DispatchMonitor(MODEL, tmp_path / "file" / "trace.arrow", quiet=True)
    with (
        pytest.warns(
            RuntimeWarning, match="dispatchmon stopped recording: .*trace.arrow cannot be written: "
        ) as caught,
        monitor,
    ):
        result = MODEL(torch.ones(1, 2))
    assert len(caught) == 1
    assert result.shape == (1, 2)
    assert isinstance(monitor.error, OSError)


def test_closing_line_says_what_was_written_and_the_next_command(tmp_path: Path, capfd) -> None:
    """One line on stderr, nothing on stdout."""
    path = tmp_path / "t.arrow"
    with DispatchMonitor(MODEL, path):
        MODEL(torch.full((1, 2), torch.nan))
    out, err = capfd.readouterr()
    size = path.stat().st_size / 1e3
    assert out == ""
    # addmm and t of the linear layer, relu and its detach; full came before the block's model call but inside the block
    assert err == (
        f"dispatchmon: 5 operators in 1 step to {path} ({size:.1f} kB), 0 in-place writes, first NaN in aten.full.default, "
        f"step 0. Next: dispatchmon nonfinite {path}\n"
    )


def test_structure_only_has_rows_and_no_numbers() -> None:
    """`stats=()` records shapes and identity and computes nothing."""
    rows = record(lambda: MODEL(torch.ones(1, 2)), MODEL, stats=())
    assert [r["shape"] for e in events(rows, op="aten.relu.default") for r in e] == [[1, 2], [1, 2]]
    assert all(
        r[s] is None for r in rows for s in ("min", "max", "mean", "std", "norm", "nan", "inf", "posinf", "zero")
    )


def test_chosen_statistics_only() -> None:
    """Statistics that were not asked for are null."""
    rows = record(lambda: MODEL(torch.ones(1, 2)), MODEL, stats=("max", "nan"))
    (relu,) = events(rows, op="aten.relu.default")
    assert all(r["max"] is not None and r["nan"] == 0 and r["min"] is None and r["zero"] is None for r in relu)


def test_module_filter_takes_statistics_only_there() -> None:
    """Outside the modules asked for rows have structure only, also in backward."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    rows = record(lambda: model(torch.ones(1, 2)).sum().backward(), model, modules="1")
    measured = {(r["module"], r["phase"]) for r in rows if r["max"] is not None}
    assert measured == {("1", "forward"), ("1", "backward")}
    assert {r["module"] for r in rows} == {None, "0", "1"}


def test_op_filter_takes_statistics_only_of_these_and_still_counts_writes() -> None:
    """A write by an operator outside the filter is a new version, and the value read next is measured anew."""

    def run() -> None:
        x = torch.tensor([1.0, 2.0])
        x.exp()
        x.mul_(3)
        x.exp()

    rows = record(run, ops="aten.exp*")
    first, second = events(rows, op="aten.exp.default")
    assert (first[0]["max"], second[0]["max"]) == (2.0, 6.0)
    assert second[0]["version"] == first[0]["version"] + 1
    assert all(r["max"] is None for e in events(rows, op="aten.mul_.Tensor") for r in e)


def test_phase_filter_leaves_rows_of_these_phases_only() -> None:
    """Phases that were not asked for leave no rows."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def run() -> None:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    assert {r["phase"] for r in record(run, model, phases=("backward",))} == {"backward"}
    assert {r["phase"] for r in record(run, model)} == {"forward", "backward", "optimizer"}


@pytest.mark.parametrize("method", ["before", "after"])
def test_a_fault_of_ours_stops_the_recording_and_not_the_training(tmp_path: Path, monkeypatch, method) -> None:
    """One warning, the operator's result all the same, and the trace says why it ends."""
    from dispatchmon import open_trace
    from dispatchmon.recording.dispatch import RecordingMode

    original, calls = getattr(RecordingMode, method), []

    def faulty(self, *args):
        calls.append(1)
        if len(calls) > 3:
            raise KeyError("a fault")
        return original(self, *args)

    monkeypatch.setattr(RecordingMode, method, faulty)
    path = tmp_path / "t.arrow"
    monitor = DispatchMonitor(MODEL, path, quiet=True)
    with pytest.warns(RuntimeWarning, match="was given up after an error: KeyError") as caught, monitor:
        results = [MODEL(torch.ones(1, 2)) for _ in range(3)]
    assert len(caught) == 1
    assert all(torch.equal(r, MODEL(torch.ones(1, 2))) for r in results)
    assert isinstance(monitor.error, KeyError)
    assert not open_trace(path).complete
