"""`verify_values`: a value that changes with no operator that declares it is found, and named by the events around it."""

from __future__ import annotations

import ctypes

import pytest
import torch
from torch import nn

from dispatchmon.values.digests import digest, digest_by_torch, extent
from recorded import events, record


def through_numpy(x: torch.Tensor) -> None:
    x.numpy()[1] = 50.0


def through_ctypes(x: torch.Tensor) -> None:
    ctypes.c_float.from_address(x.data_ptr() + 4).value = 50.0


def through_dlpack(x: torch.Tensor) -> None:
    torch.from_dlpack(torch.utils.dlpack.to_dlpack(x))[1] = 50.0  # the same memory under another storage


@pytest.mark.parametrize("write", [through_numpy, through_ctypes, through_dlpack])
def test_a_write_behind_the_dispatcher_is_found(write) -> None:
    """The hazard names the event before and the one that noticed, and the new value is measured anew."""
    x = torch.tensor([1.0, 2.0, 3.0])

    def run() -> None:
        x.exp()
        write(x)
        x.log()

    rows = record(run, verify_values=True)
    (exp,), (log,) = events(rows, op="aten.exp.default"), events(rows, op="aten.log.default", kind="op")
    (hazard,) = [r for r in rows if r["kind"] == "hazard"]
    assert (hazard["mutation"], hazard["role"], hazard["arg"]) == ("undeclared", "silent", "self")
    before = max(r["event"] for r in rows if r["storage"] == exp[0]["storage"] and r["event"] < log[0]["event"])
    assert (hazard["forward_event"], hazard["cause_event"]) == (before, log[0]["event"])
    assert hazard["storage"] == exp[0]["storage"] == log[0]["storage"]
    assert log[0]["max"] == 50.0
    assert log[0]["version"] == exp[0]["version"] + 1


def test_a_custom_operator_that_lies_to_the_dispatcher_is_found() -> None:
    """It writes through numpy, so no version counter moves: the bytes tell."""
    library = torch.library.Library("dispatchmon_liar", "FRAGMENT")
    library.define("scale(Tensor x) -> Tensor")

    def scale(x: torch.Tensor) -> torch.Tensor:
        x.numpy()[:] *= 2
        return x.clone()

    library.impl("scale", scale, "CPU")
    x = torch.tensor([1.0, 2.0])

    def run() -> None:
        torch.ops.dispatchmon_liar.scale(x)
        x.log()

    rows = record(run, verify_values=True)
    (hazard,) = [r for r in rows if r["kind"] == "hazard"]
    (liar,) = events(rows, op="dispatchmon_liar.scale.default")
    assert hazard["forward_event"] == liar[0]["event"]


def test_a_custom_operator_that_lies_through_aten_is_found_without_digests() -> None:
    """A version counter that moved exposes it: the event says `undeclared`, its argument has a row after."""
    library = torch.library.Library("dispatchmon_liar2", "FRAGMENT")
    library.define("bump(Tensor x) -> Tensor")
    library.impl("bump", lambda x: x.add_(1).clone(), "CompositeExplicitAutograd")
    x = torch.tensor([1.0, 2.0])

    def run() -> None:
        torch.ops.dispatchmon_liar2.bump(x)
        x.log()

    rows = record(run)
    (liar,), (log,) = events(rows, op="dispatchmon_liar2.bump.default"), events(rows, op="aten.log.default")
    assert liar[0]["mutation"] == "undeclared"
    assert [(r["role"], r["arg"], r["written"], r["max"]) for r in liar] == [
        ("input", "x", True, 2.0), ("output", "x", True, 3.0), ("output", "out0", False, 3.0)]  # fmt: skip
    assert log[0]["max"] == 3.0


def test_training_as_it_should_be_raises_no_alarm() -> None:
    """Declared writes, views, optimizers (fused and foreach), running statistics, dropout: nothing is undeclared."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(8, 2))
    optimizers = [
        torch.optim.AdamW(model.parameters(), **kind)
        for kind in ({"fused": True}, {"foreach": True}, {"foreach": False})
    ]

    def run() -> None:
        for optimizer in optimizers:
            for _ in range(2):
                x = torch.randn(6, 4)
                x[0] = 1
                x.t()[1].mul_(2)
                model(x).square().mean().backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)

    rows = record(run, model, verify_values=True)
    assert [r for r in rows if r["kind"] == "hazard"] == []
    assert sum(r["digest"] is not None for r in rows) > 100


def test_digest_tells_order_and_place() -> None:
    """Both ways of digesting notice a swap and a single flipped bit, and see the extent of a view only."""
    x = torch.arange(64, dtype=torch.float32)
    y = x.clone()
    y[3], y[5] = x[5], x[3]
    z = x.clone()
    z.view(torch.int32)[40] ^= 1
    for of in (digest, lambda t: digest_by_torch(t, extent(t))):
        assert of(x) == of(x.clone())
        assert len({of(x), of(y), of(z)}) == 3
        assert of(x[:40]) == of(z[:40])
        assert of(x[30:]) != of(z[30:])
