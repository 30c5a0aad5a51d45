"""One of two ranks that train as they should; in a module of its own, which a spawned process can import."""

from __future__ import annotations

import os
import warnings

import torch
import torch.distributed as dist
from torch import nn

from dispatchmon import DispatchMonitor


def on_two_ranks(rank, rendezvous, kind, folder):
    """Train a few steps on one of two ranks; the trace goes into the folder."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method="file://" + rendezvous, rank=rank, world_size=2)
    torch.manual_seed(0)
    block = lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(True), nn.LayerNorm(16), nn.Linear(16, 8))
    model = nn.Sequential(block(), block(), nn.Linear(8, 2))
    if kind.startswith("fsdp1"):
        from torch.distributed.fsdp import FullyShardedDataParallel

        settings = {"device_id": torch.device("cpu"), "use_orig_params": kind != "fsdp1 flat"}
        for i in (0, 1):
            model[i] = FullyShardedDataParallel(model[i], **settings)
        model = FullyShardedDataParallel(model, **settings)
    elif kind == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (2,))
        for part in (model[0], model[1], model):
            fully_shard(part, mesh=mesh)
    elif kind == "ddp":
        model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(True), nn.Linear(8, 2))
        model = nn.parallel.DistributedDataParallel(model)
    elif kind == "ddp static":
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(True), nn.Linear(8, 2))
        model = nn.parallel.DistributedDataParallel(model, static_graph=True, gradient_as_bucket_view=True)
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
        parallelize_module(model, init_device_mesh("cpu", (2,)), {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, foreach=kind not in ("fsdp2", "tensor parallel"))
    torch.manual_seed(rank)
    with DispatchMonitor(model, folder, quiet=True, stats=()):
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(torch.randn(5, 8)).pow(2).mean()
            (loss + model(torch.randn(5, 8)).mean() if kind == "ddp" else loss).backward()
            optimizer.step()
    dist.destroy_process_group()
