"""Tensors that are not plain numbers in plain memory: recorded right, or counted as not measured; never a wrong number."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from checking_mode import STATISTICS
from dispatchmon import DispatchMonitor
from dispatchmon.schema import CLOSING_KEY

NO_STATISTICS = "values of a kind that has no statistics"
NOT_WRITTEN = "values not there yet (memory that was not written)"
IN_FLIGHT = "results of collectives that were still in flight"
FLOAT8 = [
    name
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
    if hasattr(torch, name)
]
ROUNDING = 1e-6

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # prototypes and sparse layouts announce themselves


class Trace(NamedTuple):
    """Rows, and the closing statement."""

    rows: list[dict[str, Any]]
    closing: dict[str, Any]

    def row(self, op: str, role: str, arg: str) -> dict[str, Any]:
        """The one row of this operator, role and argument."""
        found = [r for r in self.rows if (r["op"], r["role"], r["arg"]) == (op, role, arg)]
        assert len(found) == 1, [(r["op"], r["role"], r["arg"]) for r in self.rows]
        return found[0]

    @property
    def unmeasured(self) -> dict[str, int]:
        """What has no statistics, by reason, as the trace itself says it."""
        return self.closing["skipped"]


@pytest.fixture
def watch(tmp_path: Path) -> Callable[[Callable[[], Any]], Trace]:
    """Run something under a monitor."""

    def run(program: Callable[[], Any]) -> Trace:
        path = tmp_path / "trace.arrow"
        with DispatchMonitor(None, path, quiet=True, overwrite=True) as monitor:
            program()
        assert monitor.error is None
        with pa.ipc.open_file(path) as reader:
            batches = [reader.get_batch_with_custom_metadata(i) for i in range(reader.num_record_batches)]
        closing = json.loads(batches[-1].custom_metadata[CLOSING_KEY])
        assert closing["complete"]
        assert not any("failed" in reason for reason in closing["skipped"])
        return Trace(pa.Table.from_batches([b for b, _ in batches]).to_pylist(), closing)

    return run


@pytest.fixture(scope="module")
def process_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A group of this process alone."""
    store = tmp_path_factory.mktemp("group") / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def expect(row: dict[str, Any], values: Any) -> None:
    """The statistics of a row are those of these numbers."""
    flat = np.asarray(values, dtype=np.float64).reshape(-1)
    finite = flat[np.isfinite(flat)]
    assert row["nan"] == np.isnan(flat).sum()
    assert row["inf"] == np.isinf(flat).sum()
    assert row["posinf"] == (flat == np.inf).sum()
    assert row["zero"] == (flat == 0).sum()
    if not len(finite):
        assert [row[name] for name in ("min", "max", "mean", "std", "norm")] == [None] * 5
        return
    size = np.abs(finite).max()
    assert row["min"] == pytest.approx(finite.min(), rel=1e-14)
    assert row["max"] == pytest.approx(finite.max(), rel=1e-14)
    assert row["mean"] == pytest.approx(finite.mean(), abs=ROUNDING * size)
    assert row["std"] == pytest.approx(finite.std(), abs=ROUNDING * size)
    assert row["norm"] == pytest.approx(np.sqrt(np.square(finite).sum()), rel=ROUNDING)


def nothing_measured(row: dict[str, Any]) -> bool:
    return all(row[name] is None for name in STATISTICS)


# ------------------------------------------------------------------------------------------------- sizes and dtypes
def test_empty(watch):
    """An empty tensor has counts of zero and no other statistics, and does not count as unmeasured."""
    trace = watch(lambda: torch.ones(0, 3).neg())
    row = trace.row("aten.neg.default", "output", "out0")
    assert row["shape"] == [0, 3]
    assert row["numel"] == 0
    expect(row, [])
    assert trace.unmeasured == {}


def test_zero_dimensional(watch):
    """A scalar tensor has the statistics of its one element."""
    row = watch(lambda: torch.tensor(-2.5).abs()).row("aten.abs.default", "input", "self")
    assert (row["shape"], row["stride"], row["numel"]) == ([], [], 1)
    expect(row, [-2.5])


def test_bool(watch):
    """True counts as one, False as zero."""
    x = torch.tensor([True, False, True])
    expect(watch(lambda: x.logical_not()).row("aten.logical_not.default", "input", "self"), [1, 0, 1])


@pytest.mark.parametrize("name", FLOAT8)
def test_float8(watch, name):
    """Every float8 bit pattern, NaN and infinities included, is counted as torch converts it."""
    x = torch.arange(256, dtype=torch.uint8).view(getattr(torch, name))
    row = watch(lambda: x.view(torch.int8)).row("aten.view.dtype", "input", "self")
    assert row["dtype"] == name
    expect(row, x.double().numpy())


def test_float4_is_not_measured(watch):
    """Packed pairs of four-bit floats have no statistics: the row says what it is, the trace counts it."""
    x = torch.arange(8, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    trace = watch(lambda: x.view(torch.uint8))
    row = trace.row("aten.view.dtype", "input", "self")
    assert row["dtype"] == "float4_e2m1fn_x2"
    assert nothing_measured(row)
    assert trace.unmeasured == {NO_STATISTICS: 1}


def test_complex32(watch):
    """Half-precision complex numbers are measured by magnitude."""
    x = torch.tensor([3 + 4j, 0, -1j, complex("inf"), complex("nan")], dtype=torch.complex64).to(torch.complex32)
    row = watch(lambda: x.clone()).row("aten.clone.default", "input", "self")
    expect(row, [5, 0, 1, np.inf, np.nan])


def test_complex_magnitude_does_not_overflow(watch):
    """The magnitude of a complex number whose parts square beyond their range is still right."""
    x = torch.tensor([3e38 + 3e38j, 1e-30 + 1e-30j], dtype=torch.complex64)
    row = watch(lambda: x.clone()).row("aten.clone.default", "input", "self")
    expect(row, np.abs(x.to(torch.complex128).numpy()))


# ------------------------------------------------------------------------------------------------- other layouts
@pytest.mark.parametrize("per_channel", [False, True])
def test_quantized_is_not_measured(watch, per_channel):
    """Quantized tensors, per tensor and per channel, are counted as not measured; what they dequantize to is measured."""
    x = torch.tensor([[-1.0, 0.0], [0.5, 2.0]])
    q = (
        torch.quantize_per_channel(x, torch.tensor([0.5, 0.25]), torch.tensor([8, 4]), 0, torch.quint8)
        if per_channel
        else torch.quantize_per_tensor(x, 0.5, 8, torch.quint8)
    )
    trace = watch(lambda: q.dequantize())
    row = trace.row("aten.dequantize.self", "input", "self")
    assert row["dtype"] == "quint8"
    assert nothing_measured(row)
    assert trace.unmeasured == {NO_STATISTICS: 1}
    expect(trace.row("aten.dequantize.self", "output", "out0"), q.dequantize().numpy())


LAYOUTS = {
    "coo": lambda t: t.to_sparse(),
    "csr": lambda t: t.to_sparse_csr(),
    "csc": lambda t: t.to_sparse_csc(),
    "bsr": lambda t: t.to_sparse_bsr((1, 2)),
    "bsc": lambda t: t.to_sparse_bsc((1, 2)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sparse(watch, layout):
    """A sparse tensor has its full shape, no storage, and the statistics of the elements that it stores."""
    dense = torch.tensor([[0.0, 0.0, 3.0, -1.0], [0.0, 0.0, 0.0, 0.0], [float("inf"), 2.0, 0.0, 0.0]])
    x = LAYOUTS[layout](dense)
    stored = (x._values() if layout == "coo" else x.values()).numpy()
    row = watch(lambda: torch.clone(x)).row("aten.clone.default", "input", "self")
    assert row["shape"] == [3, 4]
    assert row["stride"] is row["offset"] is row["storage"] is row["version"] is None
    expect(row, stored)


def test_uncoalesced_sparse(watch):
    """Of an uncoalesced tensor the stored elements are shown, each for itself."""
    x = torch.sparse_coo_tensor([[1, 1]], [2.0, 3.0], (4,))
    expect(watch(lambda: x.coalesce()).row("aten._coalesce.default", "input", "self"), [2, 3])


def test_empty_sparse(watch):
    """A sparse tensor that stores nothing has counts of zero."""
    x = torch.sparse_coo_tensor(torch.zeros(1, 0, dtype=torch.int64), torch.zeros(0), (4,))
    trace = watch(lambda: x.clone())
    expect(trace.row("aten.clone.default", "input", "self"), [])


def test_nested_strided_is_not_measured(watch):
    """A strided nested tensor has no shape and no statistics, and both of its operators' values are counted."""
    x = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.strided)
    trace = watch(lambda: x.clone())
    row = trace.row("aten.clone.default", "input", "self")
    assert row["shape"] is None
    assert nothing_measured(row)
    assert trace.unmeasured == {NO_STATISTICS: 2}


def test_nested_jagged_shows_its_buffer(watch):
    """An operator on a jagged tensor leaves its own row, not measured, and then the operators on the packed values."""
    x = torch.nested.nested_tensor([torch.ones(2), torch.full((3,), -2.0)], layout=torch.jagged)
    trace = watch(lambda: x.abs())
    outer, *inner = [r for r in trace.rows if r["op"] == "aten.abs.default"]
    assert nothing_measured(outer)
    expect(next(r for r in inner if r["role"] == "input"), [1, 1, -2, -2, -2])


def test_mkldnn_is_not_measured(watch):
    """Opaque memory is counted as not measured."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("no mkldnn in this build")
    x = torch.tensor([1.0, -2.0]).to_mkldnn()
    trace = watch(lambda: x.to_dense())
    assert nothing_measured(next(r for r in trace.rows if r["role"] == "input"))
    assert trace.unmeasured[NO_STATISTICS] >= 1


# ------------------------------------------------------------------------------------------------- no values at all
def test_meta_is_not_measured(watch):
    """Meta tensors have shapes and no values."""
    x = torch.ones(2, 3, device="meta")
    trace = watch(lambda: x + x)
    row = trace.row("aten.add.Tensor", "output", "out0")
    assert (row["device"], row["shape"]) == ("meta", [2, 3])
    assert nothing_measured(row)
    assert trace.unmeasured == {NO_STATISTICS: 3}


def test_empty_meta(watch):
    """Nor does an empty one raise."""
    row = watch(lambda: torch.ones(0, device="meta").neg()).row("aten.neg.default", "input", "self")
    assert row["numel"] == 0


@pytest.mark.parametrize("order", ["fake mode below", "fake mode above"])
def test_fake_is_not_measured(watch, order):
    """Fake tensors have shapes and no values, whichever mode was entered first."""
    fake = FakeTensorMode()
    x = fake.from_tensor(torch.ones(2, 3))

    def program() -> None:
        if order == "fake mode above":
            with fake:
                x.abs()
        else:
            x.abs()

    trace = watch(program)
    for row in trace.rows:
        if row["op"] == "aten.abs.default":
            assert row["shape"] == [2, 3]
            assert nothing_measured(row)


def test_symbolic_shapes_are_left_symbolic(watch):
    """A fake tensor with symbolic sizes has no shape in the trace, and no guard is added to what is being traced."""
    environment = ShapeEnv()
    fake = FakeTensorMode(shape_env=environment)
    x = fake.from_tensor(torch.ones(5, 3), static_shapes=False)
    before = len(environment.guards)
    trace = watch(lambda: x.abs())
    rows = [r for r in trace.rows if r["op"] == "aten.abs.default"]
    assert rows
    assert all(r["shape"] is None and nothing_measured(r) for r in rows)
    assert len(environment.guards) == before


def test_freed_storage_is_not_read(watch):
    """A tensor whose storage was given back, as FSDP does between uses, is not measured."""
    x = torch.ones(64)
    x.untyped_storage().resize_(0)
    trace = watch(lambda: x.view(8, 8))
    assert all(nothing_measured(r) for r in trace.rows)
    assert trace.unmeasured == {NO_STATISTICS: 2}


def test_shrunk_storage_is_not_read(watch):
    """Nor is one whose storage became too small for it: its elements lie outside the memory."""
    x = torch.ones(1 << 22)
    x.untyped_storage().resize_(4096)
    trace = watch(lambda: x.view(2, -1))
    assert all(nothing_measured(r) for r in trace.rows)
    assert trace.unmeasured == {NO_STATISTICS: 2}


# ------------------------------------------------------------------------------------------------- views
def test_conjugated_view(watch):
    """A lazily conjugated tensor has the magnitudes of its elements."""
    x = torch.tensor([3 + 4j, 1j]).conj()
    assert x.is_conj()
    expect(watch(lambda: x.clone()).row("aten.clone.default", "input", "self"), [5, 1])


def test_imaginary_part_of_a_conjugated_view(watch):
    """The imaginary part of a conjugated tensor is a lazily negated view: its sign is that of its elements, not of the memory."""
    x = torch.tensor([3 + 4j, -2j]).conj().imag
    assert x.is_neg()
    expect(watch(lambda: x.clone()).row("aten.clone.default", "input", "self"), [-4, 2])


def test_negated_view_of_real_memory(watch):
    """A negated view and its base show opposite numbers of one memory, whichever is met first and again after."""
    x = torch.tensor([1.0, -3.0, 2.0])
    y = torch._neg_view(x)

    def program() -> None:
        for t in (y, x, y, x):
            t.clone()

    rows = [r for r in watch(program).rows if r["op"] == "aten.clone.default" and r["role"] == "input"]
    for row, truth in zip(rows, ([-1, 3, -2], [1, -3, 2]) * 2, strict=True):
        expect(row, truth)
    assert len({r["storage"] for r in rows}) == 1


def test_negated_view_made_while_recording(watch):
    """The same where the view is made under the monitor, after its base was measured."""
    x = torch.tensor([1.0, -3.0, 2.0])

    def program() -> None:
        x.clone()
        torch._neg_view(x).clone()

    rows = [r for r in watch(program).rows if r["op"] == "aten.clone.default" and r["role"] == "input"]
    expect(rows[0], [1, -3, 2])
    expect(rows[1], [-1, 3, -2])


def test_expanded(watch):
    """Each element of an expanded tensor counts as often as it is shown."""
    x = torch.tensor([[1.0], [0.0], [float("nan")]]).expand(3, 4)
    row = watch(lambda: x.clone()).row("aten.clone.default", "input", "self")
    assert row["stride"] == [1, 0]
    expect(row, x.numpy())


@pytest.mark.parametrize(
    ("size", "stride", "offset"),
    [((3, 3), (1, 1), 0), ((4, 3), (2, 1), 1), ((2, 2, 3), (3, 1, 2), 0), ((3, 2), (0, 5), 2), ((1, 5), (7, 2), 1), ((2, 3, 2), (2, 0, 1), 3)],
)  # fmt: skip
def test_overlapping_memory(watch, size, stride, offset):
    """Overlapping and gapped strides: the statistics are those of the elements as they are shown."""
    x = torch.tensor([1.0, -7, 0, 3, 11, -2, 0, 5, 4, 9, -1, 6]).as_strided(size, stride, offset)
    expect(watch(lambda: x.clone()).row("aten.clone.default", "input", "self"), x.clone().numpy())


# ------------------------------------------------------------------------------------------------- subclasses
class Wrapped(Tensor):
    """A tensor with an inner tensor of twice its value."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapped:
        self = Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        self.inner = inner
        return self

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*(a.inner if isinstance(a, Wrapped) else a for a in args), **kwargs or {})
        return Wrapped(result) if isinstance(result, Tensor) else result

    def __repr__(self, **_: Any) -> str:
        return "Wrapped"


def test_wrapper_subclass(watch):
    """An operator on a wrapper leaves a row of the wrapper, not measured, and one of what is inside, measured."""
    x = Wrapped(torch.tensor([1.0, -2.0]))
    trace = watch(lambda: x.abs())
    rows = [r for r in trace.rows if r["op"] == "aten.abs.default"]
    assert [r["role"] for r in rows] == ["input", "input", "output"]
    assert nothing_measured(rows[0])
    expect(rows[1], [1, -2])
    expect(rows[2], [1, 2])
    assert trace.unmeasured == {NO_STATISTICS: 1}


class Loud(Tensor):
    """A plain subclass that would notice any call of a torch function."""

    calls: list[str] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.calls.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


def test_torch_function_subclass(watch):
    """A subclass with `__torch_function__` alone is measured as usual, and none of its hooks run for the monitor."""
    x = torch.tensor([1.0, -2.0]).as_subclass(Loud)
    Loud.calls.clear()
    x.abs()
    plain = list(Loud.calls)
    Loud.calls.clear()
    trace = watch(lambda: x.abs())
    assert Loud.calls == plain
    expect(trace.row("aten.abs.default", "input", "self"), [1, -2])


def test_parameter_and_buffer_subclasses(watch):
    """Parameters, which are a subclass too, are measured as usual."""
    x = torch.nn.Parameter(torch.tensor([0.0, 3.0]))
    expect(watch(lambda: x.abs()).row("aten.abs.default", "input", "self"), [0, 3])


def test_dtensor(watch, process_group):
    """An operator on a DTensor is not measured; those on its local tensor, which follow, are."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    x = distribute_tensor(torch.tensor([1.0, -2.0]), init_device_mesh("cpu", (1,)), [Shard(0)])
    trace = watch(lambda: x.abs())
    rows = [r for r in trace.rows if r["op"] == "aten.abs.default"]
    assert nothing_measured(rows[0])
    expect(rows[-1], [1, 2])
    assert sum(nothing_measured(r) for r in rows) == trace.unmeasured.get(NO_STATISTICS, 0)


def test_functional_collective_before_its_wait(watch, process_group):
    """The result of a collective in flight is not read; after the wait it is."""
    x = torch.tensor([1.0, -2.0])

    def program() -> None:
        y = torch.ops._c10d_functional.all_reduce(x, "sum", process_group.group_name)
        torch.ops._c10d_functional.wait_tensor(y)

    trace = watch(program)
    assert nothing_measured(trace.row("_c10d_functional.all_reduce.default", "output", "out0"))
    assert trace.unmeasured[IN_FLIGHT] >= 1
    expect(trace.row("_c10d_functional.wait_tensor.default", "output", "out0"), [1, -2])


# ------------------------------------------------------------------------------------------------- modes of autograd
def test_inference_tensors(watch):
    """Tensors without a version counter are measured, and their writes are versions of the trace all the same."""
    with torch.inference_mode():
        x = torch.tensor([1.0, -2.0])

    def program() -> None:
        with torch.inference_mode():
            x.mul_(2)
            x.abs()

    trace = watch(program)
    expect(trace.row("aten.mul_.Tensor", "output", "self"), [2, -4])
    seen = trace.row("aten.abs.default", "input", "self")
    expect(seen, [2, -4])
    assert seen["version"] == trace.row("aten.mul_.Tensor", "input", "self")["version"] + 1


def test_unwritten_memory_is_not_measured(watch):
    """What `torch.empty` returns is nobody's value: not measured, and counted."""
    trace = watch(lambda: torch.empty(3).fill_(2))
    assert nothing_measured(trace.row("aten.empty.memory_format", "output", "out0"))
    assert trace.unmeasured == {NOT_WRITTEN: 1}
    expect(trace.row("aten.fill_.Scalar", "output", "self"), [2, 2, 2])


def test_zero_tensor_is_not_read(watch):
    """Autograd's tensors of zeros that occupy no memory are not read."""
    x = torch._efficientzerotensor((3,))
    trace = watch(lambda: x * torch.ones(3))
    others = [row for row in trace.rows if row["role"] == "input" and row["min"] != 1]
    assert others
    assert all(nothing_measured(row) or row["zero"] == 3 for row in others)


@pytest.mark.parametrize("leading", [1, 16, 33, 64, 300])
def test_few_elements_then_zeros(watch, leading):
    """Norm and std keep their digits where the first elements tell nothing of the rest, as in the gradient of an embedding."""
    x = torch.zeros(3000)
    x[:leading] = 318 + torch.linspace(-1, 1, leading)
    row = watch(lambda: x.clone()).row("aten.clone.default", "input", "self")
    values = x.double().numpy()
    assert row["norm"] == pytest.approx(np.sqrt(np.square(values).sum()), rel=2e-6)
    assert row["std"] == pytest.approx(values.std(), rel=2e-6)
