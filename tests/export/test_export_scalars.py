"""`dispatchmon export --to tensorboard` and `--to scalars`: trends over steps."""

import csv
import math

import pytest
import torch
from torch import nn

from command_line import run
from dispatchmon import DispatchMonitor, open_trace
from dispatchmon.export.scalars import scalars
from dispatchmon.export.tensorboard import crc32c, varint
from trace_factory import write_trace


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Three training steps of a small network with modules and parameters."""
    path = tmp_path_factory.mktemp("export") / "trace.arrow"
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(True), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    with DispatchMonitor(model, path, record=("modules", "parameters"), quiet=True):
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(2, 3)).square().sum().backward()
            optimizer.step()
    return path


def test_tensorboard_reads_it(path, tmp_path, capsys):
    """TensorBoard's own reader finds the tags, and over the steps the numbers of the trace."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    status, out, _ = run(capsys, "export", path, "--to", "tensorboard", "-o", tmp_path / "runs")
    assert (status, out.split()[:2]) == (0, ["wrote", str(tmp_path / "runs")])
    events = accumulator.EventAccumulator(str(tmp_path / "runs"), size_guidance={"scalars": 0}).Reload()
    tags = set(events.Tags()["scalars"])
    assert tags >= {
        "1/input/min", "1/output/max", "1/grad_input/norm", "(model)/input/mean", "0.weight/value/norm", "0.weight/grad/nan",
        "0.weight/raw_grad/std", "0.weight/update/ratio", "2.bias/exp_avg_sq/max"}  # fmt: skip
    expected: dict[str, list[tuple[int, float]]] = {}
    for each in scalars(open_trace(path)):
        expected.setdefault(f"{each.of}/{each.quantity}/{each.statistic}", []).append((each.step, each.value))
    assert tags == set(expected)
    for tag, values in expected.items():
        found = events.Scalars(tag)
        assert [(e.step, e.value) for e in found] == [(s, pytest.approx(v, rel=1e-6, abs=1e-37)) for s, v in values]
    times = [e.wall_time for e in events.Scalars("1/input/min")]
    assert times == sorted(times)


ROW = {"kind": "module", "op": "ReLU", "module": "r", "arg": "input[0]", "nan": 0, "inf": 0, "posinf": 0, "zero": 1}


def test_calls_of_one_step_are_one_value(tmp_path):
    """Of 1, 2 and 6, and of 3 with a NaN, the statistics are those of all of them together."""
    norms = math.sqrt(41), 3.0
    rows = [
        {**ROW, "numel": 3, "min": 1, "max": 6, "mean": 3, "std": math.sqrt(14 / 3), "norm": norms[0]},
        {**ROW, "numel": 2, "min": 3, "max": 3, "mean": 3, "std": 0, "norm": norms[1], "nan": 1},
        {**ROW, "numel": 1, "min": 1, "max": 1, "mean": 1, "std": 0, "norm": 1, "phase": "recompute"},
    ]
    found = {s.statistic: s.value for s in scalars(open_trace(write_trace(tmp_path / "trace.arrow", rows)))}
    assert found == {
        "min": 1, "max": 6, "mean": 3, "std": pytest.approx(math.sqrt(14 / 4)), "norm": pytest.approx(math.sqrt(50)),
        "nan": 1, "inf": 0, "posinf": 0, "zero": 2}  # fmt: skip


def test_ranks_are_runs(path, tmp_path, capsys):
    """Each rank has a folder of its own in the export, and a column in the table."""
    for rank in (0, 1):
        row = {**ROW, "rank": rank, "min": float(rank)}
        write_trace(tmp_path / f"t.rank{rank}.arrow", [row], metadata={"rank": rank, "world_size": 2})
    assert run(capsys, "export", tmp_path, "--to", "tensorboard", "-o", tmp_path / "runs")[0] == 0
    assert sorted(p.parent.name for p in (tmp_path / "runs").rglob("*.dispatchmon")) == ["rank0", "rank1"]
    assert run(capsys, "export", tmp_path, "--to", "scalars", "-o", tmp_path / "t.csv")[0] == 0
    with open(tmp_path / "t.csv", newline="") as file:
        rows = [r for r in csv.DictReader(file) if r["statistic"] == "min"]
    assert [(r["rank"], r["name"], r["quantity"], r["value"]) for r in rows] == [
        ("0", "r", "input", "0.0"), ("1", "r", "input", "1.0")]  # fmt: skip


def test_nothing_is_overwritten(path, tmp_path, capsys):
    """An export that exists is left alone without --force."""
    target = tmp_path / "t.csv"
    target.write_text("mine")
    assert run(capsys, "export", path, "--to", "scalars", "-o", target)[0] == 1
    assert target.read_text() == "mine"
    assert run(capsys, "export", path, "--to", "scalars", "-o", target, "--force")[0] == 0
    assert target.read_text().startswith("rank,step,name,quantity,statistic,value\n")
    folder = ["export", path, "--to", "tensorboard", "-o", tmp_path / "runs"]
    assert [run(capsys, *folder)[0], run(capsys, *folder)[0], run(capsys, *folder, "--force")[0]] == [0, 1, 0]


def test_known_checksums():
    """Castagnoli's checksum of the example in RFC 3720, and integers in groups of seven bits."""
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(bytes(range(32))) == 0x46DD794E
    assert varint(300) == b"\xac\x02"
