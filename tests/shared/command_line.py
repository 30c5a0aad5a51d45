"""
Running `dispatchmon` in tests: in this process, or on a pseudo terminal; and the rows that these tests read.
"""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

from dispatchmon_cli import main

STATS = {"min": -1.0, "max": 2.0, "nan": 0, "inf": 0}
LINEAR = {**STATS, "op": "aten.addmm.default", "module": "encoder.layers.0.attention.projection"}
RELU = {**STATS, "op": "aten.relu_.default", "module": "", "mutation": "inplace", "duration_ns": 1_234_567}
FINITE = [
    {**LINEAR, "step": 0},
    {**LINEAR, "step": 0, "arguments": None, "role": "output", "arg": "out0"},
    {**RELU, "step": 1, "min": -41.25},
    {"op": "aten.zeros.default", "step": 1, "role": "output", "arg": "out0"},
]
NONFINITE = [*FINITE, {**LINEAR, "step": 1, "nan": 3, "inf": 1, "source": "train.py:31 in forward"}]
COMMAND = [sys.executable, "-m", "dispatchmon_cli"]


def run(capsys, *arguments):
    """Run the command in this process, and return its status, stdout and stderr."""
    status = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return status, out, err


def on_terminal(arguments, columns):
    """Run the command on a pseudo terminal of so many columns, and return what it shows there."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR")}
    process = subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.DEVNULL,  # where a bar would show the progress, on a machine that is slow today
        env={**env, "TERM": "xterm-256color"},
    )
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 4096):
            shown += piece
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    return process.wait(), shown.decode().replace("\r\n", "\n")
