"""DTensor and FSDP2: what they run to know a shape is not recorded, and their buffers are no unwritten memory that is read."""

from __future__ import annotations

import importlib

import pytest
import torch
from torch import distributed, nn

from dispatchmon import DispatchMonitor, open_trace
from dispatchmon.trace import Trace

mesh = pytest.importorskip("torch.distributed.device_mesh")
fsdp = pytest.importorskip("torch.distributed.fsdp")
parallel = pytest.importorskip("torch.distributed.tensor.parallel")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(fsdp, "fully_shard"), reason="this torch has no FSDP2")]


@pytest.fixture
def one_process(tmp_path):
    """A process group of one."""
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield mesh.init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


def trained(model, path) -> Trace:
    """Two steps of AdamW with clipped gradients."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with DispatchMonitor(model, path, quiet=True) as monitor:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.rand(4, 8)).sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    assert monitor.error is None
    return monitor.trace


def network():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))


def sharded(model, on):
    """FSDP2."""
    for layer in (model[0], model[3], model):
        fsdp.fully_shard(layer, mesh=on)
    return model


def split(model, on):
    """Tensor parallel."""
    plan = {"0": parallel.ColwiseParallel(), "3": parallel.RowwiseParallel()}
    return parallel.parallelize_module(model, on, plan)


@pytest.mark.parametrize("distribute", [sharded, split])
def test_no_false_word(distribute, one_process, tmp_path):
    """No unwritten memory, no NaN, no hazard; no operator that only served to know a shape."""
    trace = trained(distribute(network(), one_process), tmp_path / "t.arrow")
    answer = trace.nonfinite()
    assert answer.uninitialised == ()
    assert not answer.found
    assert answer.largest.magnitude < 1000
    assert trace.audit().hazards == ()
    rows = trace.scan(["op", "kind"])
    assert not [op for batch in rows for op in batch.column("op").to_pylist() if op.startswith("aten.empty_strided")]


def test_two_ranks(tmp_path):
    """
    Parameters that are freed and gathered again were not written behind anyone's back, though every value is verified.

    What gloo's reduce-scatter brought to rank 0 was made by the logarithm on rank 1, and nothing of it came from outside.
    """
    torch.multiprocessing.spawn(importlib.import_module("sharded_ranks").train, (str(tmp_path),), nprocs=2)
    trace = open_trace(tmp_path / "traces")
    assert trace.audit().hazards == ()
    origins = trace.nonfinite().origins
    assert (origins[0].rank, origins[0].op, origins[0].kind) == (1, "aten.log.default", "made")
    brought = [origin for origin in origins if origin.kind == "external"]
    assert brought
    assert all(origin.follows is not None for origin in origins if origin.rank == 0)
    assert {(o.rank, o.op) for o in brought} == {(0, "c10d._reduce_scatter_base_.default")}
    assert {(o.follows.rank, o.follows.event) for o in brought} == {(1, origins[0].event)}


def test_a_gathered_buffer_is_written_not_read(tmp_path):
    """`all_gather_copy_in` fills its second argument and reads nothing of it."""
    with DispatchMonitor(None, tmp_path / "t.arrow", quiet=True) as monitor:
        torch.ops.fsdp.all_gather_copy_in([torch.rand(4)], torch.empty(4), [4], 4, 0)[1].sum()
    assert monitor.trace.nonfinite().uninitialised == ()
