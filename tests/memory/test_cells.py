"""The map of where non-finite elements lie, against torch on the tensor itself."""

import random

import numpy as np
import pytest
import torch

from dispatchmon.memory.cells import MOST_CELLS, as_cells, elements, is_exact, runs_of, sizes_of, stretches, unpacked
from dispatchmon.statistics.maps import map_of
from recorded import only, record

INF = float("inf")


def spoiled(shape, share=0.02):
    """A random tensor with some NaN, +Inf and -Inf."""
    t = torch.randn(shape)
    for value in (float("nan"), INF, -INF):
        t[torch.rand(shape) < share] = value
    return t


def a_view(seed):
    """A random tensor: permuted, cut, strided, expanded."""
    r = random.Random(seed)
    torch.manual_seed(seed)
    n = r.randint(0, 4)
    t = spoiled([r.choice([1, 2, 3, 5, 17, 40]) for _ in range(n)])
    if n > 1:
        t = t.permute(r.sample(range(n), n))
    if n and r.random() < 0.5:
        d = r.randrange(n)
        t = (
            t.narrow(d, r.randrange(t.shape[d]), 1)
            if r.random() < 0.3
            else t[(slice(None),) * d + (slice(None, None, 2),)]
        )
    return t.unsqueeze(0).expand(3, *t.shape) if r.random() < 0.3 else t


def mapped(t):
    """The map of a tensor, as the monitor makes it."""
    runs, _ = runs_of(t.shape, t.stride())
    return map_of(t.as_strided(sizes_of(t.shape, t.stride()), [step for step, _ in reversed(runs)], t.storage_offset()))


@pytest.mark.parametrize("seed", range(120))
def test_maps_of_views(seed):
    """Element by element if there is room, else each cell says whether any of its elements is non-finite."""
    t = a_view(seed)
    for got, want in zip(unpacked(mapped(t), t.shape, t.stride()), (t.isnan(), t == INF, t == -INF), strict=True):
        if is_exact(t.shape, t.stride()):
            np.testing.assert_array_equal(got, want.numpy())
        else:
            np.testing.assert_array_equal(got, elements(as_cells(want.numpy(), t.stride()), t.shape, t.stride()))
            assert (got | ~want.numpy()).all()


@pytest.mark.parametrize("n", [4097, 5000, 8192, 100_003])
@pytest.mark.parametrize("value", [float("nan"), INF, -INF])
def test_maps_by_extremes(n, value):
    """Where only one of the three is there it is found by the extremes of each stretch, the last and shorter one included."""
    torch.manual_seed(n)
    t = torch.randn(n)
    t[torch.rand(n) < 0.001] = value
    t[-1] = value
    flags = value != value, value == INF, value == -INF
    assert map_of(t, *flags) == map_of(t)
    assert map_of(t.half(), *flags) == map_of(t)


def test_a_map_is_small():
    """However large the value, there are at most 4096 cells."""
    for sizes in ([1 << 20], [513, 511], [4097], [3, 5, 7, 11, 13, 17], [70000, 2]):
        cells = 1
        for size, length in zip(sizes, stretches(sizes), strict=True):
            cells *= -(-size // length)
        assert cells <= MOST_CELLS


def test_only_rows_with_nonfinite_elements_have_one():
    """A finite value has no map; a value with one NaN has one with one bit."""
    rows = record(lambda: torch.tensor([1.0, -1.0]).log())
    assert only(rows, op="aten.log.default", role="input")["cells"] is None
    assert only(rows, op="aten.log.default", role="output")["cells"] == bytes([0b001, 0b10])


def test_the_old_value_of_a_written_tensor_has_its_own():
    """Before and after an in-place write the maps differ."""
    x = torch.tensor([INF, 1.0, -INF])
    rows = record(lambda: x.mul_(0))
    assert only(rows, op="aten.mul_.Tensor", role="input")["cells"] == bytes([0b110, 0b001, 0b100])
    assert only(rows, op="aten.mul_.Tensor", role="output")["cells"] == bytes([0b001, 0b101])
