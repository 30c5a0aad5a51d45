"""Statistics against an independent float64 reference, the same for the C kernel and for torch's reductions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dispatchmon.memory.cells import runs_of
from dispatchmon.packed import totals as r
from dispatchmon.statistics.kernel import native
from dispatchmon.statistics.layout import layout_of
from dispatchmon.statistics.reductions import PIECE, pieces
from dispatchmon.statistics.table import Statistics

BACKENDS = [
    "deferred",
    "torch",
    pytest.param(
        "native", marks=pytest.mark.skipif(native is None, reason="the package was built without a compiler")
    ),
]
FLOATS = [
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
]
INTEGERS = ["int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64", "bool"]


def measured(tensor: torch.Tensor, backend: str) -> list[float]:
    """One table row of a tensor, as the recorder gets it."""
    statistics = Statistics(4, backend)
    runs, repeat = runs_of(tensor.shape, tensor.stride())
    layout = layout_of(runs, repeat, tensor.storage_offset(), tensor.dtype)
    assert layout is not None
    slot = statistics.measure(tensor, layout)
    assert slot == 0
    statistics.settle()
    return statistics.blocks[0][1][0].tolist()


def reference(tensor: torch.Tensor) -> list[float]:
    """The same by numpy, in long double from float64."""
    if tensor.dtype.is_complex:
        wide = tensor.to(torch.complex128).numpy().ravel()
        values = np.hypot(wide.real.astype(np.longdouble), wide.imag.astype(np.longdouble))
        values[np.isnan(wide.real) | np.isnan(wide.imag)] = np.nan
    elif tensor.dtype in (torch.int64, torch.uint64):
        values = tensor.numpy().ravel().astype(np.longdouble)
    else:
        values = tensor.to(torch.float64).numpy().ravel().astype(np.longdouble)
    finite = values[np.isfinite(values)]
    counts = [np.isnan(values).sum(), np.isinf(values).sum(), (values == np.inf).sum(), (finite == 0).sum()]
    if not len(finite):
        return [0, math.inf, -math.inf, 0, 0, 0, *counts]
    mean = finite.mean()
    return [
        len(finite),
        finite.min(),
        finite.max(),
        mean,
        np.sqrt(((finite - mean) ** 2).sum()),
        np.sqrt((finite**2).sum()),
        *counts,
    ]


def check(tensor: torch.Tensor, backend: str) -> None:
    """Counts and extremes exactly (magnitudes of complex numbers to the last bit but one); sums within 1e-6 of the sum of magnitudes."""
    got, true = measured(tensor, backend), [float(x) for x in reference(tensor)]
    assert [got[i] for i in (r.COUNT, r.NAN, r.INF, r.POSINF, r.ZERO)] == [
        true[i] for i in (r.COUNT, r.NAN, r.INF, r.POSINF, r.ZERO)
    ]
    if tensor.dtype.is_complex:  # magnitudes are rounded
        assert (got[r.MIN], got[r.MAX]) == (
            pytest.approx(true[r.MIN], rel=1e-15),
            pytest.approx(true[r.MAX], rel=1e-15),
        )
    else:
        assert (got[r.MIN], got[r.MAX]) == (true[r.MIN], true[r.MAX])
    if true[r.COUNT]:
        scale = max(abs(true[r.MIN]), abs(true[r.MAX]))
        std, true_std = (row[r.SPREAD] / math.sqrt(row[r.COUNT]) for row in (got, true))
        assert got[r.MEAN] == pytest.approx(true[r.MEAN], rel=1e-6, abs=1e-6 * scale)
        assert std == pytest.approx(true_std, rel=1e-5, abs=1e-7 * scale)
        assert got[r.NORM] == pytest.approx(true[r.NORM], rel=1e-6)


def sample(dtype: str, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    kind = getattr(torch, dtype)
    if dtype == "bool":
        return torch.rand(shape, generator=generator) > 0.4
    if dtype in INTEGERS:
        info = torch.iinfo(kind)
        raw = torch.randint(-(2**63), 2**63 - 1, shape, generator=generator)
        if info.bits == 64:
            return raw.view(kind)
        return (raw % (info.max + 1)).to(kind) if info.min == 0 else (raw // 2 ** (64 - info.bits)).to(kind)
    if kind.is_complex:
        return torch.randn(shape, dtype=torch.complex128, generator=generator).to(kind)
    return (torch.randn(shape, dtype=torch.float64, generator=generator) * 3).to(kind)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(), (1,), (17,), (1000,), (300_001,)])
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, "complex64", "complex128"])
def test_every_dtype(dtype: str, shape: tuple[int, ...], backend: str) -> None:
    """Dense memory of every dtype and several sizes, one larger than a piece."""
    check(sample(dtype, shape), backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "float8_e5m2", "complex64"])
@pytest.mark.parametrize("put", [
    [math.nan], [math.inf], [-math.inf], [math.nan, math.inf, -math.inf, 0.0, -0.0],
])  # fmt: skip
def test_nonfinite_elements_are_counted_and_left_out(dtype: str, put: list[float], backend: str) -> None:
    """NaN and infinities are counts; the other statistics are those of the finite elements."""
    values = sample(dtype, (5000,)).to(torch.complex128 if dtype.startswith("complex") else torch.float64)
    for i, value in enumerate(put):
        values[37 * i + 5 :: 601] = value
    check(values.to(getattr(torch, dtype)), backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0, -0.0])
def test_all_elements_alike(value: float, backend: str) -> None:
    """Nothing finite, or nothing but zero."""
    check(torch.full((100,), value), backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("dtype", "values"), [
    ("float32", [1e38, 2e38, 3e38]), ("float32", [1e-44, 3e-44, 0.0]), ("float64", [1e-310, 2e-310, 1e-300]),
    ("float64", [1e300, 2e300, -1e300]), ("float16", [6e-8, 65504.0]), ("int64", [2**62, -(2**62), 3]),
])  # fmt: skip
def test_extremes_of_the_range(dtype: str, values: list[float], backend: str) -> None:
    """Neither sums nor squares leave the range, denormals are not zero."""
    tensor = torch.tensor(values, dtype=getattr(torch, dtype))
    got, true = measured(tensor, backend), [float(x) for x in reference(tensor)]
    assert got[r.ZERO] == true[r.ZERO]
    assert (got[r.MIN], got[r.MAX]) == (true[r.MIN], true[r.MAX])
    assert got[r.MEAN] == pytest.approx(true[r.MEAN], rel=1e-6, abs=1e-6 * max(abs(v) for v in values) / len(values))
    assert got[r.NORM] == pytest.approx(true[r.NORM], rel=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_small_spread_around_a_large_mean(backend: str) -> None:
    """A plain sum of squares would lose this variance."""
    generator = torch.Generator().manual_seed(0)
    x = (torch.randn(200_000, dtype=torch.float64, generator=generator) + 3e3).float()
    got = measured(x, backend)
    assert got[r.SPREAD] / math.sqrt(got[r.COUNT]) == pytest.approx(x.double().std(correction=0).item(), rel=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("view", [
    lambda x: x.t(), lambda x: x[::2], lambda x: x[:, ::3], lambda x: x[1:, 2:5], lambda x: x[:, 3], lambda x: x[2, 3],
    lambda x: x.reshape(4, 5, 6, 10).permute(2, 0, 3, 1), lambda x: x[:1].expand(7, 60), lambda x: x[:, :1].expand(20, 9),
    lambda x: x.as_strided((5, 8), (3, 2)), lambda x: x.reshape(2, 10, 12, 5).contiguous(memory_format=torch.channels_last),
    lambda x: x[0, 0].expand(3, 4, 5), lambda x: x.unfold(1, 7, 2),
])  # fmt: skip
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_any_layout(view, dtype: str, backend: str) -> None:
    """Transposed, stepped, sliced, expanded, overlapping memory: the statistics of the tensor's elements."""
    tensor = view(sample(dtype, (20, 60)))
    check(tensor.contiguous(), "torch")
    got, true = measured(tensor, backend), [float(x) for x in reference(tensor.contiguous())]
    assert got == pytest.approx(true, rel=1e-5, abs=1e-3)


def test_a_large_expanded_tensor_is_measured_once_per_element() -> None:
    """Expanded dimensions are counted, not walked: a million million elements take no time."""
    x = torch.tensor([1.0, 2.0, 4.0]).expand(1_000_000, 1_000_000, 3)
    for backend in ("torch",) if native is None else ("torch", "native"):
        got = measured(x, backend)
        assert (got[r.COUNT], got[r.MEAN]) == (3e12, pytest.approx(7 / 3))
        assert got[r.NORM] == pytest.approx(math.sqrt(21e12))


def test_a_large_tensor_is_not_copied() -> None:
    """Torch's reductions convert pieces of bounded size: no piece is as large as the tensor."""
    x = torch.ones(1_000_000)
    parts = list(pieces(x, (1_000_000,), (1,), 0))
    assert max(p.numel() for p in parts) <= PIECE
    assert sum(p.numel() for p in parts) == 1_000_000
    assert all(p.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() for p in parts)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(4,), (300_000,), (4, 5)])
@pytest.mark.parametrize("size", [1e155, 1e300, 1e-155, 1e-300])
def test_std_and_norm_beyond_the_squares_of_float64(backend, size, shape):
    """Of -size and size in equal parts the std is size, and the norm size times the root of their number: by hand."""
    x = torch.full(shape, size, dtype=torch.float64)
    x.view(-1)[::2] *= -1
    if shape == (4, 5):  # an expanded dimension counts as often as it stands there
        x = x[:, :2].unsqueeze(1).expand(4, 3, 2)
    got = measured(x, backend)
    n = x.numel()
    assert got[r.SPREAD] / math.sqrt(n) == pytest.approx(size, rel=1e-12)
    assert got[r.NORM] == pytest.approx(size * math.sqrt(n), rel=1e-12)
    assert got[r.MEAN] == pytest.approx(0, abs=1e-12 * size)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_norm_beyond_float64_is_not_finite(backend):
    """Four times 1.7e308 have a norm of 3.4e308, which is no float64: the trace has null there, and the std, 0."""
    got = measured(torch.full((4,), 1.7e308, dtype=torch.float64), backend)
    assert (got[r.NORM], got[r.SPREAD], got[r.MAX]) == (math.inf, 0.0, 1.7e308)
