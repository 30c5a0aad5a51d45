"""Several monitors and torch's own modes, one inside the other: each gives its usual answer."""

from __future__ import annotations

import re
from contextlib import ExitStack

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from comparison import differences, outcome
from dispatchmon import DispatchMonitor
from programs import PROGRAMS
from recorded import needs_one_detach, rows_of

pytestmark = pytest.mark.slow

OF_THE_RUN = ("storage", "start_ns", "duration_ns")
STATISTICS = ("min", "max", "mean", "std", "norm", "nan", "inf", "posinf", "zero", "cells")


class Nothing(TorchDispatchMode):
    """The least that a dispatch mode can be."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def told(path, without=STATISTICS):
    """
    The rows of a trace, with the storages numbered in order of their first row, and without times.

    Two runs differ in the statistics of memory that nobody has written yet, as that which `bernoulli_` fills.
    """
    numbers = {}
    rows = []
    for row in rows_of(path):
        storage = row["storage"]
        number = None if storage is None else numbers.setdefault(storage, len(numbers))
        rows.append({**{k: v for k, v in row.items() if k not in OF_THE_RUN + without}, "storage": number})
    return rows


def encoder():
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)


def train(model):
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(2, 4, 8)).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("name", ["transformer encoder in training", "convolutions with inplace activations",
                                  "checkpoints, not reentrant", "linear in inference mode"])  # fmt: skip
@needs_one_detach
def test_two_monitors_write_the_same_rows(name, tmp_path):
    """Two nested monitors change no bit, and write the rows that one alone writes."""

    class Both(ExitStack):
        def __init__(self, model):
            super().__init__()
            for which in ("outer", "inner"):
                self.enter_context(DispatchMonitor(model, tmp_path / f"{which}.arrow", quiet=True, source=False))

    build = PROGRAMS[name].build
    alone = outcome(build)
    one = outcome(build, lambda m: DispatchMonitor(m, tmp_path / "one.arrow", quiet=True, source=False))
    assert not differences(alone, one)
    assert not differences(alone, outcome(build, Both))
    assert len(told(tmp_path / "one.arrow")) > 10
    assert told(tmp_path / "inner.arrow") == told(tmp_path / "one.arrow")
    assert told(tmp_path / "outer.arrow", without=()) == told(tmp_path / "inner.arrow", without=())


@needs_one_detach
def test_a_monitor_for_some_steps_inside_another(tmp_path):
    """The inner monitor's steps filter and end do not disturb the outer one."""
    model = encoder()
    with DispatchMonitor(model, tmp_path / "alone.arrow", quiet=True):
        train(model)
    model = encoder()
    outer = DispatchMonitor(model, tmp_path / "outer.arrow", quiet=True)
    with outer, DispatchMonitor(model, tmp_path / "inner.arrow", quiet=True, steps="1:2"):
        train(model)
    assert told(tmp_path / "outer.arrow") == told(tmp_path / "alone.arrow")
    assert {row["step"] for row in rows_of(tmp_path / "inner.arrow")} == {1}


def test_monitors_left_in_the_wrong_order(tmp_path):
    """The outer monitor can be left first; both traces are whole and nothing stays."""
    original = nn.Module.__call__
    outer = DispatchMonitor(path=tmp_path / "outer.arrow", quiet=True)
    inner = DispatchMonitor(path=tmp_path / "inner.arrow", quiet=True)
    outer.__enter__()
    inner.__enter__()
    torch.ones(2).exp()
    outer.__exit__(None, None, None)
    torch.ones(2).log()
    inner.__exit__(None, None, None)
    torch.ones(2).sin()
    assert [row["op"] for row in told(tmp_path / "outer.arrow") if row["role"] == "output"][1:] == ["aten.exp.default"]
    ops = {row["op"] for row in told(tmp_path / "inner.arrow")}
    assert {"aten.exp.default", "aten.log.default"} <= ops
    assert "aten.sin.default" not in ops
    assert nn.Module.__call__ is original
    assert not list(torch.utils._python_dispatch._get_current_dispatch_mode_stack())


def flops(path, order):
    """What `FlopCounterMode` counts, with a monitor around it, inside it, or none."""
    model = encoder()
    counter = FlopCounterMode(display=False)
    with ExitStack() as stack:
        for which in order:
            monitor = lambda: DispatchMonitor(model, path, quiet=True, source=False)
            stack.enter_context(counter if which == "counter" else monitor())
        train(model)
    counts = {where: {str(op): n for op, n in ops.items()} for where, ops in counter.get_flop_counts().items()}
    return counts, [p.detach().numpy().tobytes() for p in model.parameters()]


@needs_one_detach
@pytest.mark.parametrize("order", [("counter", "monitor"), ("monitor", "counter")], ids=["inside", "outside"])
def test_flop_counter(order, tmp_path):
    """`FlopCounterMode` counts the same for every module, the parameters are the same, and so are the monitor's rows."""
    alone = flops(None, ("counter",))
    assert alone[0]["Global"]
    assert flops(tmp_path / "nested.arrow", order) == alone
    model = encoder()
    with DispatchMonitor(model, tmp_path / "alone.arrow", quiet=True, source=False):
        train(model)
    nested, alone = (
        [(row["op"], row["role"], row["phase"], row["shape"]) for row in told(tmp_path / f"{name}.arrow")]
        for name in ("nested", "alone")
    )
    assert nested == alone


def debugged(path, order, **settings):
    """What `DebugMode` wrote down, without the addresses in it."""
    model = encoder()
    debug = pytest.importorskip("torch.utils._debug_mode", reason="before torch 2.9").DebugMode(**settings)
    blocks = {
        "debug": lambda: debug, "nothing": Nothing, "monitor": lambda: DispatchMonitor(model, path, quiet=True, source=False),
    }  # fmt: skip
    with ExitStack() as stack:
        for which in order:
            stack.enter_context(blocks[which]())
        train(model)
    return re.sub(r"0x[0-9a-f]+", "0x", debug.debug_string()), [
        p.detach().numpy().tobytes() for p in model.parameters()
    ]


@pytest.mark.parametrize(
    "settings", [{}, {"record_torchfunction": True, "record_nn_module": True}], ids=["plain", "all"]
)
def test_debug_mode(settings, tmp_path):
    """`DebugMode` writes down the same inside a monitor, and around it what it writes around any other mode."""
    alone = debugged(None, ("debug",), **settings)
    assert "aten::addmm" in alone[0]
    assert debugged(tmp_path / "outside.arrow", ("monitor", "debug"), **settings) == alone
    around_nothing = debugged(None, ("debug", "nothing"), **settings)
    assert debugged(tmp_path / "inside.arrow", ("debug", "monitor"), **settings) == around_nothing
    assert told(tmp_path / "inside.arrow")
    assert around_nothing[1] == alone[1]


def idle_below_another(path, run):
    """Run something in a step that is not recorded, while another mode keeps ours on the stack."""
    with DispatchMonitor(None, path, steps="0:1", quiet=True) as monitor, Nothing():
        monitor.step()
        return run()


def test_an_idle_monitor_still_moves_version_counters(tmp_path):
    """Also in a step that is not recorded autograd's check sees the writes of operators on lists."""
    x = torch.zeros(2)
    idle_below_another(tmp_path / "t.arrow", lambda: torch._foreach_add_([x], 1.0))
    assert x._version == 1


def test_an_idle_monitor_keeps_the_bits_of_inference_mode(tmp_path):
    """`linear` on a non-contiguous input, in a phase that is not recorded and under an idle mode."""
    torch.manual_seed(0)
    linear, x = nn.Linear(24, 40), torch.randn(7, 24, 5).transpose(1, 2)
    with torch.inference_mode():
        plain = linear(x)
        with DispatchMonitor(linear, tmp_path / "phases.arrow", phases=("backward",), quiet=True):
            other_phase = linear(x)
        with DispatchMonitor(linear, tmp_path / "idle.arrow", steps="0:1", quiet=True) as monitor:
            with Nothing():
                monitor.step()
            idle = linear(x)
    assert torch.equal(plain, other_phase)
    assert torch.equal(plain, idle)
    assert all(row["step"] == 0 for row in rows_of(tmp_path / "idle.arrow"))
