"""`dispatchmon structure`: the module tree with shapes and dtypes."""

import json

import pytest
import torch
from torch import nn

from command_line import run
from dispatchmon import DispatchMonitor
from trace_factory import write_trace


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A small network that was run twice on batches of two sizes, recorded without statistics; one module is never called."""
    path = tmp_path_factory.mktemp("structure") / "trace.arrow"
    model = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.ReLU(True), nn.Linear(4, 1)))
    model.register_module("spare", nn.Linear(1, 1))
    model.forward = lambda x, *, mask: model[1](model[0](x * mask))
    with DispatchMonitor(model, path, record=("modules",), stats=(), quiet=True):
        for n in (2, 5):
            model(torch.ones(n, 3), mask=torch.ones(3, dtype=torch.bool))
    return path


def test_table(path, capsys):
    """One line per module, indented as the tree is; places are named where there are several; other shapes are counted."""
    assert run(capsys, "structure", path) == (
        0,
        """\
module   class       calls  inputs                                                       outputs
(model)  Sequential  2      input[0] [2, 3] float32 (and 1 other), kwargs.mask [3] bool  [2, 1] float32 (and 1 other)
  0      Linear      2      [2, 3] float32 (and 1 other)                                 [2, 4] float32 (and 1 other)
  1      Sequential  2      [2, 4] float32 (and 1 other)                                 [2, 1] float32 (and 1 other)
    0    ReLU        2      [2, 4] float32 (and 1 other)                                 [2, 4] float32 (and 1 other)
    1    Linear      2      [2, 4] float32 (and 1 other)                                 [2, 1] float32 (and 1 other)
  spare  Linear      -      -                                                            -

5 of 6 modules recorded, 10 calls.
""",
        "",
    )


def test_json(path, capsys):
    """JSON has a list of modules with documented keys, and every shape with its count."""
    status, out, err = run(capsys, "structure", path, "--format", "json", "--module", "1.*")
    answer = json.loads(out)
    assert (status, err) == (0, "")
    assert list(answer) == ["format", "model", "modules", "warnings"]
    assert [m["name"] for m in answer["modules"]] == ["1.0", "1.1"]
    assert answer["modules"][1] == {
        "name": "1.1",
        "class": "Linear",
        "calls": 2,
        "inputs": [
            {"arg": "input[0]", "dtype": "float32", "shape": [2, 4], "count": 1},
            {"arg": "input[0]", "dtype": "float32", "shape": [5, 4], "count": 1},
        ],
        "outputs": [
            {"arg": "output", "dtype": "float32", "shape": [2, 1], "count": 1},
            {"arg": "output", "dtype": "float32", "shape": [5, 1], "count": 1},
        ],
        "same_as": None,
    }


def test_a_trace_of_operators_alone(tmp_path, capsys):
    """What to do is said where there is no module call."""
    out = run(capsys, "structure", write_trace(tmp_path / "trace.arrow"))[1]
    assert out.splitlines()[-1] == (
        'No module call is in this trace: record it with record=("modules",); stats=() is enough.'
    )


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One block under two names, each called once, and with a layer inside; a recorded trace."""
    path = tmp_path_factory.mktemp("shared") / "trace.arrow"
    block = nn.Sequential(nn.Linear(2, 2))
    model = nn.Sequential(block, block)
    with DispatchMonitor(model, path, record=("modules",), stats=(), quiet=True):
        model(torch.ones(1, 2))
    return path


def test_a_module_under_several_names_is_counted_once(shared, capsys):
    """Every later name says which module it is; the calls of all names add up, and none is counted twice."""
    assert run(capsys, "structure", shared)[1] == """\
module   class              calls  inputs          outputs
(model)  Sequential         1      [1, 2] float32  [1, 2] float32
  0      Sequential         2      [1, 2] float32  [1, 2] float32
    0    Linear             2      [1, 2] float32  [1, 2] float32
  1      Sequential (is 0)  -      -               -
    0    Linear (is 0.0)    -      -               -

3 of 3 modules recorded, 5 calls.
"""
    answer = json.loads(run(capsys, "structure", shared, "--format", "json")[1])
    assert [(m["name"], m["same_as"]) for m in answer["modules"]] == [
        *(("", None), ("0", None), ("0.0", None), ("1", "0"), ("1.0", "0.0")),
    ]


def test_of_the_second_name_alone(tmp_path, capsys):
    """With a filter the name still says what it is."""
    modules = [{"name": "", "class": "Net"}, {"name": "a", "class": "L"}, {"name": "b", "class": "L", "same_as": "a"}]
    rows = [{"kind": "module", "op": "L", "module": "b", "arg": "input[0]", "shape": [1]}]
    path = write_trace(tmp_path / "trace.arrow", rows, metadata={"modules": modules})
    answer = json.loads(run(capsys, "structure", path, "--module", "b", "--format", "json")[1])
    assert [(m["name"], m["calls"], m["same_as"]) for m in answer["modules"]] == [("b", 1, "a")]
    assert run(capsys, "structure", path)[1].endswith("\n\n1 of 2 modules recorded, 1 call.\n")
