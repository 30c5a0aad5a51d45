"""
The C kernel against numpy in extended precision, over dtypes, contents, sizes and layouts.

The expected numbers come from the elements as torch or numpy reads them, one by one, never from the kernel. Run under
the sanitizers by tests/judges/sanitize_kernel.py.
"""

import ctypes
import mmap
import os
import random
import struct
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

_kernel = pytest.importorskip("dispatchmon.statistics._kernel", reason="the C extension (optional) is not built")

pytestmark = pytest.mark.slow

DTYPES = tuple(name for name in _kernel.DTYPES if hasattr(torch, name))  # float8_e8m0fnu came with torch 2.7
SUMMED_IN_FLOAT = {"float32", "float16", "bfloat16", "int8", "uint8", "bool"} | {d for d in DTYPES if "float8" in d}
UNSIGNED = {"uint8": np.uint8, "uint16": np.uint16, "uint32": np.uint32, "uint64": np.uint64}
SIZES = (1, 2, 15, 16, 31, 33, 1000, 2048, 2049, 100_003)


def pack(dtype, run, step=1, outer=(), repeat=1):
    """A layout as the kernel reads it; outer: (size, stride) of the dimensions, the fastest first."""
    sizes, strides = [[pair[i] for pair in outer] + [0] * (8 - len(outer)) for i in (0, 1)]
    code = _kernel.DTYPES[dtype]
    return struct.pack(_kernel.LAYOUT_FORMAT, code, run, step, len(outer), repeat, *sizes, *strides)


def measure(pointer, layout, threads=1):
    """The row as a dict, with the returned count as `nonfinite`; fails if anything outside the row is written."""
    row = (ctypes.c_double * (_kernel.TOTALS + 2))(*[-7.0] * (_kernel.TOTALS + 2))
    nonfinite = _kernel.measure(ctypes.addressof(row) + 8, pointer, layout, threads)
    assert row[0] == row[_kernel.TOTALS + 1] == -7
    return dict(zip(_kernel.COLUMNS, row[1:-1], strict=True)) | {"nonfinite": nonfinite}


def torch_type(dtype):
    """The torch dtype of a kernel dtype's name."""
    return getattr(torch, dtype)


def any_bits(rng, dtype, n):
    """n elements of random bytes: every pattern of a small dtype, any exponent and NaN payload of a large one."""
    data = rng.integers(0, 256, n * torch_type(dtype).itemsize, dtype=np.uint8)
    return torch.from_numpy(data).view(torch_type(dtype))


def bytes_of(tensor):
    """A copy of the tensor's memory."""
    return tensor.contiguous().view(torch.uint8).numpy().copy()


@np.errstate(invalid="ignore")  # signalling NaN
def elements_of(data, dtype):
    """The elements that lie in these bytes, each exactly as an extended float, complex or integer."""
    if dtype == "bool":
        return (data != 0).astype(np.longdouble)
    if dtype in UNSIGNED:
        return data.view(UNSIGNED[dtype]).astype(np.longdouble)
    if dtype == "complex128":
        return data.view(np.complex128).astype(np.clongdouble)
    if dtype == "complex64":
        return data.view(np.complex64).astype(np.clongdouble)
    if dtype.startswith("int"):
        return data.view(dtype).astype(np.longdouble)
    return torch.from_numpy(data).view(torch_type(dtype)).to(torch.float64).numpy().astype(np.longdouble)


def expected(elements, repeat=1):
    """All columns by their definitions, in extended precision, scaled so that no square leaves its range."""
    if elements.dtype == np.clongdouble:
        nan = np.isnan(elements.real) | np.isnan(elements.imag)
        inf = ~nan & (np.isinf(elements.real) | np.isinf(elements.imag))
        posinf = inf
        finite = elements[~nan & ~inf]
        values = np.hypot(finite.real, finite.imag)
    else:
        nan, inf, posinf = np.isnan(elements), np.isinf(elements), np.isposinf(elements)
        values = elements[np.isfinite(elements)]
    masks = {"nan": nan, "inf": inf, "posinf": posinf, "nonfinite": nan | inf, "zero": values == 0}
    row = {"count": len(values) * repeat} | {name: int(mask.sum()) * repeat for name, mask in masks.items()}
    if not len(values):
        return row | {"min": np.inf, "max": -np.inf, "mean": 0, "spread": 0, "norm": 0, "peak": 0, "size": 0}
    peak = np.abs(values).max()
    scaled = values / (peak or 1)
    mean = scaled.mean()
    return row | {
        "min": values.min(),
        "max": values.max(),
        "mean": mean * peak,
        "spread": np.sqrt(((scaled - mean) ** 2).sum() * repeat) * peak,
        "norm": np.sqrt((scaled**2).sum() * repeat) * peak,
        "peak": peak,
        "size": np.abs(scaled).mean() * peak,
    }


def check(got, want, dtype, where):
    """Counts and extremes exactly; mean to 1e-6 of the mean magnitude; sums of squares as near as the dtype allows."""
    __tracebackhide__ = True
    near, sums, ulp = (1e-6, 2e-5, 1e-7) if dtype in SUMMED_IN_FLOAT else (1e-12, 1e-9, 1e-15)
    message = f"{where}: got {got}, want {want}"
    for name in ("count", "nan", "inf", "posinf", "zero", "nonfinite"):
        assert got[name] == want[name], f"{name} of {message}"
    rounding = 4e-16 if dtype.startswith("complex") else 0  # a magnitude is rounded twice
    for name in ("min", "max"):
        exact = float(min(want[name], np.finfo(np.float64).max)) if want["count"] else want[name]
        close = got[name] == exact or (rounding and abs(got[name] - exact) <= rounding * exact + 5e-324)
        assert close, f"{name} of {message}"
    with np.errstate(over="ignore"):
        got, want = ({**row, "squares": np.longdouble(row["spread"]) ** 2} for row in (got, want))
        merged = 2e-15 * want["peak"] * np.sqrt(want["count"]) * want["spread"]  # block means are known to an ulp of double
        limits = {
            "mean": near * want["size"],
            "norm": near * want["norm"],
            "squares": sums * want["squares"] + want["count"] * (ulp * want["peak"]) ** 2 + merged,
        }
        for name, limit in limits.items():
            close = got[name] == float(want[name]) or abs(got[name] - want[name]) <= limit + 5e-324
            assert close, f"{name} of {message}"


def from_floats(make):
    """Contents of a floating dtype from float64 numbers; complex ones get them in both parts, the second reversed."""

    def contents(rng, dtype, n):
        info = torch.finfo(torch_type(dtype))
        values = torch.from_numpy(np.array(make(rng, n, info), np.float64))
        if torch_type(dtype).is_complex:
            return torch.complex(values, values.flip(0)).to(torch_type(dtype))
        return values.to(torch_type(dtype))

    return contents


def sprinkle(rng, n, info):
    """Seven in ten finite, the rest NaN, +Inf and -Inf."""
    values = rng.standard_normal(n)
    where = rng.random(n)
    values[where < 0.3] = np.nan
    values[where < 0.2] = np.inf
    values[where < 0.1] = -np.inf
    return values


def lowest(info):
    """The smallest positive number of a floating dtype; float8_e8m0fnu has no subnormals."""
    return float(info.tiny) * (1 if info.dtype == "float8_e8m0fnu" else float(info.eps))


FLOATS = {
    "random": from_floats(lambda rng, n, info: rng.standard_normal(n)),
    "sprinkled with NaN and Inf": from_floats(sprinkle),
    "one NaN at the end": from_floats(lambda rng, n, info: np.append(rng.standard_normal(n - 1), np.nan)),
    "masked with -Inf": from_floats(lambda rng, n, info: np.where(np.arange(n) % 64 < 40, 0.5, -np.inf)),
    "all NaN": from_floats(lambda rng, n, info: np.full(n, np.nan)),
    "all +Inf": from_floats(lambda rng, n, info: np.full(n, np.inf)),
    "all -Inf": from_floats(lambda rng, n, info: np.full(n, -np.inf)),
    "zeros of both signs": from_floats(lambda rng, n, info: np.where(rng.random(n) < 0.5, 0.0, -0.0)),
    "half zeros": from_floats(lambda rng, n, info: np.where(rng.random(n) < 0.5, 0.0, rng.standard_normal(n))),
    "subnormal": from_floats(lambda rng, n, info: rng.integers(-3, 4, n) * lowest(info)),
    "tiny": from_floats(lambda rng, n, info: (1 + rng.random(n)) * info.tiny),
    "near the maximum": from_floats(lambda rng, n, info: rng.uniform(-1, 1, n) * info.max),
    "all the maximum": from_floats(lambda rng, n, info: np.full(n, float(info.max))),
    "all scales": from_floats(lambda rng, n, info: rng.standard_normal(n) * 2.0 ** rng.integers(-20, 20, n)),
    "constant": from_floats(lambda rng, n, info: np.full(n, 0.1)),
    "mean a thousand times std": from_floats(lambda rng, n, info: 1e3 + rng.standard_normal(n)),
    "zeros before a far mean": from_floats(
        lambda rng, n, info: np.where(np.arange(n) < 40, 0, 300 + rng.standard_normal(n))
    ),
}


def from_integers(make):
    """Contents of an integer dtype; make(rng, n, low, high, dtype) gets its range."""

    def contents(rng, dtype, n):
        if dtype == "bool":
            return torch.from_numpy(make(rng, n, 0, 1, np.uint8)).bool()
        info = np.iinfo(dtype)
        return torch.from_numpy(make(rng, n, int(info.min), int(info.max), np.dtype(dtype)))

    return contents


def between(rng, low, high, n, dtype):
    """n random integers, both ends included."""
    return rng.integers(low, high, n, dtype, endpoint=True)


INTEGERS = {
    "random": from_integers(lambda rng, n, low, high, dtype: between(rng, low, high, n, dtype)),
    "small": from_integers(lambda rng, n, low, high, dtype: between(rng, 0, min(high, 50_000), n, dtype)),
    "extremes": from_integers(lambda rng, n, low, high, dtype: rng.choice(np.array([low, high, 0, 1], dtype), n)),
    "all the maximum": from_integers(lambda rng, n, low, high, dtype: np.full(n, high, dtype)),
    "all the minimum": from_integers(lambda rng, n, low, high, dtype: np.full(n, low, dtype)),
    "narrow at the maximum": from_integers(
        lambda rng, n, low, high, dtype: between(rng, max(high - 100, 0), high, n, dtype)
    ),
}


def contents_of(dtype):
    """The contents that a dtype is tested with, by name."""
    floating = torch_type(dtype).is_floating_point or torch_type(dtype).is_complex
    return {"any bits": any_bits} | (FLOATS if floating else INTEGERS)


@pytest.mark.parametrize(("dtype", "contents"), [(d, c) for d in DTYPES for c in contents_of(d)])
def test_dense_memory_of_every_dtype_content_and_size(dtype, contents):
    """Every column is right for dense memory, whatever lies in it and wherever blocks and lanes end."""
    for n in SIZES:
        data = bytes_of(contents_of(dtype)[contents](np.random.default_rng(n), dtype, n))
        check(measure(data.ctypes.data, pack(dtype, n)), expected(elements_of(data, dtype)), dtype, n)


LAYOUTS = {  # run, step, outer (size, stride) pairs, repeat
    "step 2": (5000, 2, (), 1),
    "scalar expanded": (1, 1, (), 3000),
    "expanded": (333, 1, (), 7),
    "expanded to nothing": (333, 1, (), 0),
    "empty": (0, 1, (), 1),
    "empty outer dimension": (5, 1, ((0, 5),), 1),
    "rows of a wider matrix": (100, 1, ((70, 128),), 1),
    "long rows of a wider matrix": (3000, 1, ((5, 3001),), 1),
    "column-major slice": (90, 64, ((50, 1),), 2),
    "channels-last slice": (3, 1, ((17, 4), (19, 80), (2, 1600)), 1),
    "overlapping windows": (8, 1, ((500, 3),), 1),
    "eight outer": (3, 2, ((2, 7), (2, 15), (3, 31), (2, 100), (2, 210), (2, 430), (3, 900), (2, 2800)), 1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_layouts_of_every_dtype(dtype, layout):
    """A strided, repeated or empty layout measures exactly the elements that it addresses."""
    run, step, outer, repeat = LAYOUTS[layout]
    check_layout(np.random.default_rng(1), dtype, run, step, outer, repeat)


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_empty_tensor_has_no_memory(dtype):
    """Torch gives it the address 0, which is not read."""
    empty = torch.empty(0, 3, dtype=torch_type(dtype))
    assert empty.data_ptr() == 0
    for outer in ((), ((0, 3),), ((3, 1), (0, 3))):
        check(measure(0, pack(dtype, 0, 1, outer)), expected(np.empty(0)), dtype, outer)


def check_layout(rng, dtype, run, step, outer, repeat, shift=0):
    """Measure random bytes through a layout, `shift` bytes off their alignment."""
    index = np.arange(run) * step
    for size, stride in outer:
        index = (np.arange(size)[:, None] * stride + index).reshape(-1)
    data = bytes_of(any_bits(rng, dtype, int(index.max(initial=0)) + 1))
    raw = np.zeros(len(data) + 16, np.uint8)[shift : shift + len(data)]
    raw[:] = data
    elements = data.reshape(-1, torch_type(dtype).itemsize)[index if repeat else index[:0]].reshape(-1)
    got = measure(raw.ctypes.data, pack(dtype, run, step, outer, repeat))
    check(got, expected(elements_of(elements, dtype), repeat), dtype, (run, step, outer, repeat, shift))


@pytest.mark.parametrize("seed", range(40))
def test_layouts_drawn_at_random(seed):
    """Layouts drawn at random, at pointers that are not multiples of the item size."""
    draw = random.Random(seed)
    for _ in range(5):
        outer = tuple((draw.choice((1, 2, 3, 5, 9)), draw.choice((1, 2, 7, 40, 301))) for _ in range(draw.randrange(5)))
        run = draw.choice((1, 2, 3, 17, 64, 500, 2047, 2500))
        step, repeat, shift = draw.choice((1, 1, 1, 2, 5)), draw.choice((1, 1, 4)), draw.randrange(16)
        check_layout(np.random.default_rng(seed), draw.choice(DTYPES), run, step, outer, repeat, shift)


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_beyond_the_last_element_is_read(dtype):
    """Elements that end where a forbidden page begins are measured without touching it."""
    page, width = mmap.PAGESIZE, torch_type(dtype).itemsize
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    memory = mmap.mmap(-1, 5 * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert libc.mprotect(start + 4 * page, page, 0) == 0
    try:
        for n in (1, 3, 31, 32, 33, 100, 4 * page // width - 1):
            assert measure(start + 4 * page - n * width, pack(dtype, n))["count"] == n
            half = n // 2
            assert measure(start + 4 * page - (2 * half + 1) * width, pack(dtype, half + 1, 2))["count"] == half + 1
    finally:
        libc.mprotect(start + 4 * page, page, mmap.PROT_READ | mmap.PROT_WRITE)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int8", "int64"])
def test_sums_stay_accurate_over_many_elements(dtype):
    """Over 2e7 elements mean and std are right to 1e-6, by numpy's pairwise sums in float64."""
    n = 20_000_000
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-3, 120, (n,), generator=generator, dtype=torch.int32).to(torch_type(dtype))
    got = measure(x.data_ptr(), pack(dtype, n), 2)
    values = x.to(torch.float64).numpy()
    assert got["count"] == n and (got["min"], got["max"]) == (-3, 119)
    assert got["mean"] == pytest.approx(values.mean(), rel=1e-6)
    assert got["spread"] ** 2 / n == pytest.approx(values.var(), rel=1e-6)
    assert got["norm"] == pytest.approx(np.sqrt((values**2).sum()), rel=1e-6)
    assert got["zero"] == (values == 0).sum()


@pytest.mark.parametrize(
    ("dtype", "mean", "error"), [("float32", 1e3, 1e-5), ("float32", 1e5, 1e-5), ("float64", 1e9, 1e-6)]
)
def test_small_spread_around_a_large_mean(dtype, mean, error):
    """std 1 survives a mean that is many times larger: numpy's two-pass variance of the same numbers is met."""
    x = torch.from_numpy(np.random.default_rng(0).normal(mean, 1, 300_001)).to(torch_type(dtype))
    got = measure(x.data_ptr(), pack(dtype, len(x)))
    assert got["spread"] ** 2 / len(x) == pytest.approx(x.numpy().astype(np.longdouble).var(), rel=error)


def test_constant_has_no_spread():
    """A constant has mean = min = max and a spread of exactly zero."""
    x = torch.full((100_003,), 0.1)
    got = measure(x.data_ptr(), pack("float32", len(x)))
    assert got["min"] == got["max"] == got["mean"] == x[0].item() and got["spread"] == 0


@pytest.mark.parametrize(
    ("dtype", "base"), [("int64", 17 * 10**17), ("uint64", 2**64 - 200), ("int64", -(2**63) + 150)]
)
def test_spread_of_large_integers(dtype, base):
    """Integers beyond 2^53 keep a spread that their doubles do not have: -100, 0, 100 around base."""
    x = np.array([base, base - 100, base + 100] * 1000, dtype)
    got = measure(x.ctypes.data, pack(dtype, len(x)))
    assert got["spread"] ** 2 == pytest.approx(2000 * 100**2, rel=1e-12)
    assert (got["mean"], got["min"], got["max"]) == (float(base), float(base - 100), float(base + 100))


@pytest.mark.parametrize(
    ("dtype", "first", "rest"), [("int64", -(2**63), 0), ("int64", 2**63 - 1, -1), ("uint64", 0, 2**63)]
)
def test_mean_where_a_difference_leaves_the_range_of_int64(dtype, first, rest):
    """Numbers that lie 2^63 apart, and nothing further, keep their mean."""
    x = np.array([first] * 3 + [rest] * 5, dtype)
    got = measure(x.ctypes.data, pack(dtype, len(x)))
    assert got["mean"] == pytest.approx((3 * first + 5 * rest) / 8, rel=1e-15)


@pytest.mark.parametrize(("size", "norm"), [(1e200, 2e200), (1.7e308, np.inf), (1e-200, 2e-200), (5e-324, 1e-323)])
def test_norm_and_mean_where_squares_leave_the_range_of_double(size, norm):
    """The norm of four equal float64 is twice one of them, also where their squares overflow or vanish."""
    x = np.full(4, size)
    got = measure(x.ctypes.data, pack("float64", 4))
    assert (got["norm"], got["mean"], got["spread"]) == (pytest.approx(norm, rel=1e-15), size, 0)


@pytest.mark.parametrize("scale", [1, 1e300, 1e-300])
def test_magnitude_of_complex_elements(scale):
    """|3-4i| is 5 at any scale, where the squares of the parts overflow and where they vanish."""
    x = np.full(5, complex(3 * scale, -4 * scale))
    got = measure(x.ctypes.data, pack("complex128", 5))
    assert got["min"] == got["max"] == got["mean"] == pytest.approx(5 * scale, rel=1e-15)
    assert got["norm"] == pytest.approx(5 * scale * 5**0.5, rel=1e-15)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_elements_that_are_not_finite(dtype):
    """A NaN part makes an element NaN, even beside an infinite one; otherwise an Inf of either sign makes it +Inf."""
    x = np.array([complex(np.inf, np.nan), complex(-np.inf, 1), complex(0, -np.inf), 0j, complex(-0.0, -0.0)], dtype)
    got = measure(x.ctypes.data, pack(dtype, 5))
    counts = {"nan": 1, "inf": 2, "posinf": 2, "nonfinite": 3, "zero": 2, "count": 2}
    assert {name: got[name] for name in counts} == counts


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "complex64"])
def test_subnormals_count_while_the_process_flushes_them(dtype):
    """Under torch.set_flush_denormal(True) a subnormal is still no zero and the exact minimum; the setting stays."""
    tensor = torch.full((100,), torch.finfo(torch_type(dtype)).tiny / 4, dtype=torch_type(dtype))
    data = bytes_of(tensor)
    want = expected(elements_of(data, dtype))
    normal = torch.tensor(torch.finfo(torch.float32).tiny)
    supported = torch.set_flush_denormal(True)
    try:
        got = measure(data.ctypes.data, pack(dtype, 100))
        still_flushed = (normal * 0.25).item() == 0
    finally:
        torch.set_flush_denormal(False)
    assert got["zero"] == 0 and got["min"] > 0
    check(got, want, dtype, "flushed")
    assert still_flushed == supported


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64"])
def test_result_does_not_depend_on_threads(dtype):
    """Any number of threads gives the same bits."""
    n = 1_500_001
    x = torch.randn(n, generator=torch.Generator().manual_seed(0)).mul(100).to(torch_type(dtype))
    rows = [measure(x.data_ptr(), pack(dtype, n), threads) for threads in (1, 2, 3, 7, 500)]
    assert all(row == rows[0] for row in rows)
    check(rows[0], expected(elements_of(bytes_of(x), dtype)), dtype, n)


WITHOUT_TORCH = """
import ctypes, struct, sys
import numpy as np
from dispatchmon.statistics import _kernel
assert "torch" not in sys.modules
x, row = np.random.default_rng(0).standard_normal(2_000_003), (ctypes.c_double * _kernel.TOTALS)()
layout = struct.pack(_kernel.LAYOUT_FORMAT, _kernel.DTYPES["float64"], len(x), 1, 0, 1, *[0] * 16)
rows = []
for threads in (1, 2, 5):
    _kernel.measure(ctypes.addressof(row), x.ctypes.data, layout, threads)
    rows.append(bytes(row))
assert len(set(rows)) == 1 and abs(row[_kernel.COLUMNS.index("mean")] - x.mean()) < 1e-12
"""

AFTER_FORK = """
import ctypes, os, struct, torch
from dispatchmon.statistics import _kernel
torch.set_num_threads(2)
x, row = torch.ones(2_000_003), (ctypes.c_double * _kernel.TOTALS)()
layout = struct.pack(_kernel.LAYOUT_FORMAT, _kernel.DTYPES["float32"], len(x), 1, 0, 1, *[0] * 16)
measure = lambda: _kernel.measure(ctypes.addressof(row), x.data_ptr(), layout, 2)
x.sum(), measure()
child = os.fork()
if not child:
    row[0] = 0
    measure()
    os._exit(0 if row[0] == len(x) else 1)
assert os.waitpid(child, 0)[1] == 0
measure()
"""


@pytest.mark.parametrize("script", [WITHOUT_TORCH, AFTER_FORK], ids=["without torch", "after a fork"])
def test_threads_where_those_of_torch_cannot_be_used(script):
    """Threads still work without torch, and in a forked child, which has not inherited torch's OpenMP threads."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(_kernel.__file__)))
    command, environment = [sys.executable, "-c", script], os.environ | {"PYTHONPATH": root}
    result = subprocess.run(command, env=environment, timeout=120, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_many_python_threads_measure_at_once():
    """The module keeps no state: eight Python threads measure different tensors at once, large ones without the GIL."""
    tensors = [torch.full((300_001,), float(i)) for i in range(8)]
    wrong = []

    def run(i):
        for _ in range(20):
            row = measure(tensors[i].data_ptr(), pack("float32", 300_001), 2)
            if (row["min"], row["max"], row["mean"], row["count"]) != (i, i, i, 300_001):
                wrong.append((i, row))

    threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_constants_describe_the_interface():
    """What Python needs to know is told by the module: row, layout and codes."""
    assert _kernel.TOTALS == len(_kernel.COLUMNS) == 10
    assert _kernel.COLUMNS == ("count", "min", "max", "mean", "spread", "norm", "nan", "inf", "posinf", "zero")
    assert struct.calcsize(_kernel.LAYOUT_FORMAT) == 168
    assert all(isinstance(torch_type(name), torch.dtype) for name in DTYPES)
    assert sorted(_kernel.DTYPES.values()) == list(range(len(_kernel.DTYPES)))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((0, 0, b""), TypeError, "measure() takes 4 arguments (3 given)"),
        ((0, 0, b"", 1), ValueError, "a layout has 168 bytes, this one has 0"),
        ((0, 0, struct.pack("21q", 99, *[0] * 20), 1), ValueError, "no dtype has code 99"),
        (
            (0, 0, struct.pack("21q", 0, 1, 1, 9, *[0] * 17), 1),
            ValueError,
            "a layout has 0 to 8 outer dimensions, not 9",
        ),
        ((0, 0, "layout", 1), TypeError, "expected bytes, str found"),
        ((0, "x", b"", 1), TypeError, None),
    ],
)
def test_wrong_arguments_are_refused(arguments, error, message):
    """A malformed call raises instead of reading memory."""
    with pytest.raises(error) as caught:
        _kernel.measure(*arguments)
    assert message is None or str(caught.value) == message
