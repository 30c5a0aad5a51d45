"""What a line says is a nicety: whatever stands there, asking for it raises nothing and a recording goes on."""

from __future__ import annotations

import importlib
import inspect
import types

import pytest
import torch
from torch import nn

from dispatchmon import DispatchMonitor, open_trace
from dispatchmon.hazards import lines, targets

MODULES = ("dataclasses", "shlex", "torch.nn.init", "torch.optim.adam", "torch.utils.data.sampler")


def codes(code):
    """A code object and those inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes(constant)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_no_line_raises(name):
    """Every call, store and binary operation of real modules, under several operators."""
    module = importlib.import_module(name)
    outer = compile(inspect.getsource(module), module.__file__, "exec")
    asked = 0
    for code in codes(outer):
        places = {at for start, end, _ in code.co_lines() for at in range(start, min(end, start + 4), 2)}
        for at in sorted(places)[:6]:
            for op in ("aten.add_.Tensor", "aten.copy_.default", "aten.random_.from", "aten.mul.out"):
                lines.written_at(code, at, op)
                lines.argument_written(code, at, op)
            lines.operands_differ(code, at)
            lines.borrowed(code, at)
            lines.given_names(code, at, 0, "x")
            lines.statement_at(code, at)
            asked += 1
    assert asked > 20


def test_every_name_of_a_call_has_an_overload_or_none():
    """Names of the namespace object itself among them: `super().__init__(...)`, `loader.__iter__()`."""
    for name in (*dir(object()), *dir(torch.ops.aten), "no_such_operator_", "x.out", ""):
        assert isinstance(lines.overload(name, False), str)
        assert isinstance(lines.overload(name, True), str)


class Layer(nn.Linear):
    """A module that is made inside the block: its weight is filled under the line of `super().__init__`."""

    def __init__(self):
        super().__init__(2, 2)


class Loader:
    """An iterator that is asked for by its name, and writes."""

    def __iter__(self):
        yield torch.empty(2).random_(0, 5)


def test_a_write_under_an_explicit_call_of_a_special_method(tmp_path):
    """As accelerate's data loader does: the recording is whole."""
    with DispatchMonitor(None, tmp_path / "t.arrow", quiet=True) as monitor:
        Layer()(torch.rand(3, 2)).sum().backward()
        for batch in Loader().__iter__():
            batch.sum()
    assert monitor.error is None
    (file,) = open_trace(tmp_path / "t.arrow").files
    assert file.complete
    assert not [why for why in file.skipped if "could not be recorded" in why]


def test_a_target_without_source_is_unknown():
    """Code that was made by `exec` has no lines."""
    try:
        exec(compile("x = None\nx.add_(1)", "<made>", "exec"))
    except AttributeError as error:
        assert targets.target_of(error.__traceback__.tb_next) == targets.UNKNOWN
