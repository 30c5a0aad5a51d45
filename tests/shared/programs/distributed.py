"""The same on two processes, which talk over gloo."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn


def build_ddp():
    model = nn.parallel.DistributedDataParallel(
        nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Linear(8, 4)),
        gradient_as_bucket_view=True,
    )
    return model, train


def build_fsdp2():
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(*(nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 6)) for _ in range(2)))
    for block in model:
        fully_shard(block)
    fully_shard(model)

    def run(model):
        losses = train(model)
        state = {name: value.full_tensor() for name, value in model.state_dict().items()}
        return losses, state, [p.grad.full_tensor() for p in model.parameters()]

    return model, run


def train(model):
    torch.manual_seed(dist.get_rank())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.randn(5, 6)).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss)
    return losses


def compare(rank: int, kind: str, folder: str) -> None:
    """Run on one rank, alone and watched, and write down what differs."""
    from comparison import differences, monitored, outcome

    os.environ.update(MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    build = {"ddp": build_ddp, "fsdp2": build_fsdp2}[kind]
    alone = outcome(build)
    watched = outcome(build, monitored(Path(folder) / "trace.arrow"))
    assert alone["error"] is None, alone["error"]
    Path(folder, f"differences.rank{rank}").write_text(" ".join(differences(alone, watched)))
    dist.barrier()
    dist.destroy_process_group()
