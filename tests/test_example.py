"""The example is what `make demo` shows first."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
    assert numbers(printed, "input, says a forward hook") == output
    assert output[0] == 0.0
    assert numbers(printed, "input, says the trace")[0] < 0.0
