"""A recording survives whatever its program calls its things: what UTF-8 cannot hold is stored as an escape."""

import os
import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn

from dispatchmon import DispatchMonitor, Rule, SettingError, open_trace
from dispatchmon_cli import main
from recorded import rows_of

HALF = "\udc80"  # as Python reads the byte 0x80 in a name that is not UTF-8
SAID = "\\udc80"


def as_program(folder, text, *arguments):
    """Run a program whose file has a name that is not UTF-8, with another such name as its argument."""
    path = os.path.join(os.fsencode(folder), b"train\x80.py")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    command = [sys.executable.encode(), path, b"--name=\x80", *map(os.fsencode, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, errors="surrogateescape")


def test_a_file_and_a_command_line_that_are_not_utf_8(tmp_path):
    """The trace is complete, and says source and command with an escape."""
    path = tmp_path / "trace.arrow"
    done = as_program(
        tmp_path,
        "import sys, torch\nfrom dispatchmon import DispatchMonitor\n"
        "with DispatchMonitor(None, sys.argv[2]):\n    torch.ones(2).add_(1)\n",
        path,
    )
    assert done.returncode == 0, done.stderr
    trace = open_trace(path)
    assert (trace.complete, trace.warnings) == (True, ())
    assert {row["source"] for row in rows_of(path)} == {f"train{SAID}.py:4 in <module>"}
    assert trace.files[0].metadata["command"][1] == f"--name={SAID}"


class Named(nn.Module):
    """A network whose module, parameter and buffer have odd names; of a class Python itself takes none."""

    def __init__(self):
        super().__init__()
        self.add_module("m" + HALF, nn.Linear(2, 2))
        self.register_parameter("p" + HALF, nn.Parameter(torch.ones(2)))
        self.register_buffer("b" + HALF, torch.ones(2))

    def forward(self, x):
        x = getattr(self, "m" + HALF)(x) * getattr(self, "p" + HALF)
        getattr(self, "b" + HALF).add_(1)
        return x


def odd_function():
    """A function whose name and file are odd."""
    code = compile("def f(x):\n    y = x.exp()\n    x.mul_(2)\n    return y.mul_(2)\n", f"lib{HALF}.py", "exec")
    names = {}
    exec(code, names)
    f = names["f"]
    f.__code__ = f.__code__.replace(co_name="f" + HALF, co_qualname="f" + HALF) if sys.version_info >= (3, 11) else f.__code__
    return f


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_names_of_modules_parameters_buffers_and_functions(tmp_path, capsys):
    """Each stands in the trace with an escape, in operators, borders, hazards and alerts; every command reads it."""
    path = tmp_path / "trace.arrow"
    model, f = Named(), odd_function()
    rule = Rule("*", "output", "norm", above=1e-9)
    with DispatchMonitor(model, path, record=("ops", "modules", "parameters"), rules=[rule], quiet=True) as monitor:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        model(torch.ones(3, 2)).sum().backward()
        optimizer.step()
        f(torch.ones(2, requires_grad=True) * 1)
    assert monitor.error is None
    trace = open_trace(path)
    assert (trace.complete, trace.warnings) == (True, ())
    rows = rows_of(path)
    assert "m" + SAID in {row["module"] for row in rows}
    assert {f"p{SAID}", f"b{SAID}", f"m{SAID}.weight"} <= {row["name"] for row in rows}
    assert {f"lib{SAID}.py:{line} in f{SAID}" for line in (2, 3, 4)} <= {row["source"] for row in rows}
    assert trace.files[0].metadata["modules"][1]["name"] == "m" + SAID
    for command in ("info", "summarize", "audit", "nonfinite", "structure", "show"):
        for format_ in ("table", "json", "csv"):
            assert main([command, str(path), "--format", format_]) in (0, 2)
            out, err = capsys.readouterr()
            out.encode()
            assert err == ""


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("n" * 300 + ".arrow", "path has a name of 306 bytes, nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn…: give one of at most 245"),
        ("ü" * 130, "path has a name of 260 bytes, üüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüü…: give one of at most 245"),
        ("n/" * 2100, "path has 4199 bytes, n/n/n/n/n/n/n/n/n/n/n/n/n/n/n/n/n/n/n/n/…: give one of at most 4000"),
        ("a\0b", "path is 'a\\x00b': a path has no NUL"),
    ],
)  # fmt: skip
def test_a_path_that_cannot_be(path, said):
    """What no file system takes is an error on entering; the monitor can be entered again."""
    monitor = DispatchMonitor(None, path)
    for _ in range(2):
        with pytest.raises(SettingError) as caught, monitor:
            pytest.fail("entered")
        assert str(caught.value) == said


def test_a_path_that_shows_only_when_it_is_opened(tmp_path):
    """A folder that cannot be made ends the recording with a warning, and nothing else."""
    (tmp_path / "file").write_text("")
    with (
        pytest.warns(RuntimeWarning, match="dispatchmon stopped recording: .*cannot be written"),
        DispatchMonitor(None, tmp_path / "file" / "trace.arrow", quiet=True) as monitor,
    ):
        result = torch.ones(2) + 1
    assert result.tolist() == [2, 2]
    assert isinstance(monitor.error, OSError)


def test_a_pipe_is_no_place_for_a_trace(tmp_path):
    """What is there and no regular file is refused, and stays."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(SettingError, match="is no regular file"), DispatchMonitor(None, pipe, overwrite=True):
        pytest.fail("entered")
    assert pipe.is_fifo()


def test_warnings_show_no_control_character(tmp_path, capsys):
    """What the program itself calls its things reaches its terminal as escapes, in warnings and in the closing line."""
    model = nn.Sequential()
    model.add_module("a\x1b[2J", nn.Linear(2, 2))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with DispatchMonitor(model, tmp_path / "t\x1b.arrow", on_nonfinite="warn"):
            (model(torch.ones(2, 2)).sum() / 0).backward()
    said = [str(each.message) for each in caught] + [capsys.readouterr().err]
    assert len(said) > 1
    assert "\x1b" not in "".join(said)
