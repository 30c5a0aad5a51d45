"""A share of the damaged and crafted traces; `make test-fuzz` puts 5,000 to every command."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
HERE = Path(__file__).resolve().parent
SHARE = 24


@pytest.mark.parametrize("first", [0, 10_000])
def test_no_file_breaks_a_command(first):
    """Exit 0 or 1, at most two lines on stderr, no traceback, no signal, bounded time and memory, no other answer unsaid."""
    command = [sys.executable, str(HERE / "trace_fuzz.py"), "--count", str(SHARE), "--seed", str(first)]
    path = ":".join(map(str, (HERE.parent / "shared", HERE)))
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
