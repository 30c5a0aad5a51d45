"""
A long trace is read in bounded memory.
"""

import subprocess
import sys

import pytest

from folders import ROOT

BENCHMARKS = ROOT / "benchmarks"
PROGRAM = """
import sys
from dispatchmon_cli import main
status = main(sys.argv[1:])
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(status, peak // 1024, file=sys.stderr)
"""


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """A trace of a million rows and one of two, with the columns and batches of a recorded one."""
    folder = tmp_path_factory.mktemp("large")
    for millions in (1, 2):
        arguments = [str(folder / f"{millions}.arrow"), str(millions * 1_000_000)]
        subprocess.run([sys.executable, str(BENCHMARKS / "make_large_trace.py"), *arguments], check=True)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["summarize"],
        ["summarize", "--by", "source"],
        ["show", "--where", "nan > 0", "--limit", "0"],
        ["show", "--step", "3:4", "--format", "ndjson"],
        ["export", "--to", "parquet", "-o", "{0}.parquet"],
        ["export", "--to", "parquet", "--partition", "rank,step", "-o", "{0}.parts"],
        ["info"],
    ],
    ids=" ".join,
)
def test_memory_does_not_grow_with_the_trace(traces, arguments):
    """Twice the rows take no more than a tenth and 40 MB more memory, and less than 600 MB."""
    peaks = []
    for millions in (1, 2):
        path = traces / f"{millions}.arrow"
        given = [argument.format(path) for argument in arguments]
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *given, str(path)], capture_output=True, text=True, check=True
        )
        status, peak = done.stderr.split()[-2:]
        assert status == "0"
        peaks.append(int(peak))
    assert peaks[1] < peaks[0] * 1.1 + 40
    assert peaks[1] < 600
