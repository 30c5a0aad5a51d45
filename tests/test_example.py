"""The example is what `make demo` shows first."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("example")]

SCRIPT = Path(__file__).resolve().parent.parent / "examples" / "train_digits.py"


def run(folder, *options):
    """Return what the example prints in the folder."""
    command = [sys.executable, SCRIPT, *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # other tests run beside this one
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder, env=environment).stdout


def numbers(printed, label):
    """Return min, max and mean of the line that starts with the label."""
    (line,) = (line for line in printed.splitlines() if line.startswith(label))
    return [float(word) for word in line.split()[-3:]]


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """Return what the example prints under the monitor."""
    return run(tmp_path_factory.mktemp("digits"))


def test_monitor_changes_no_prediction(printed, tmp_path):
    """Without the monitor the same network is trained, to more than 95 %, and no trace is written."""
    accuracy = printed.splitlines()[0]
    assert run(tmp_path, "--no-monitor").splitlines()[0] == accuracy
    assert float(accuracy.removeprefix("test accuracy ").removesuffix("%")) > 95
    assert list(tmp_path.iterdir()) == []


def test_trace_shows_what_the_hook_cannot(printed):
    """The hook reads the output as the input; the trace holds the input, with its negative numbers."""
    output = numbers(printed, "output, says the trace")
    hooked = numbers(printed, "input, says a forward hook")
    assert hooked[:2] == output[:2]
    assert hooked[2] == pytest.approx(output[2], abs=1.5e-4)  # a float32 mean and a float64 one, both in four places
    assert output[0] == 0.0
    assert numbers(printed, "input, says the trace")[0] < 0.0


def test_rounding_noise_has_no_sign(printed):
    """The mean after a batch norm is 0 but for rounding, whose sign depends on the processor; what is below 0 keeps its own."""
    spec = importlib.util.spec_from_file_location("train_digits", SCRIPT)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    assert example.line("x", (-1.5, 2.25, -3.1e-09)).split() == ["x", "-1.5000", "2.2500", "0.0000"]
    assert example.line("x", (-0.00004, -0.0, -0.00006)).split() == ["x", "0.0000", "0.0000", "-0.0001"]
    assert "-0.0000" not in printed
