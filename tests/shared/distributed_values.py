"""Module and parameter events on two processes, against what torch alone says of each rank's own shard."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from programs.distributed import build_ddp, build_fsdp2


def local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def last_step(kind: str) -> dict[str, dict[str, float]]:
    """Norms of this rank's part in the last of three steps, by torch with clones: role -> parameter -> norm."""
    torch.manual_seed(7)
    model, _ = {"ddp": build_ddp, "fsdp2": build_fsdp2}[kind]()
    torch.manual_seed(dist.get_rank())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    found: dict[str, dict[str, float]] = {}
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(5, 6)).square().mean().backward()
        named = dict(model.named_parameters())
        found["raw_grad"] = {n: local(p.grad).norm().item() for n, p in named.items()}
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        found["grad"] = {n: local(p.grad).norm().item() for n, p in named.items()}
        before = {n: local(p.detach()).clone() for n, p in named.items()}
        found["value"] = {n: t.norm().item() for n, t in before.items()}
        optimizer.step()
        found["update"] = {n: (local(p.detach()) - before[n]).norm().item() for n, p in named.items()}
        found["exp_avg"] = {n: local(optimizer.state[p]["exp_avg"]).norm().item() for n, p in named.items()}
    return found


def compare(rank: int, kind: str, folder: str) -> None:
    """Run on one rank, alone and watched; write down what differs, and the truth of the last step."""
    from comparison import differences, monitored, outcome

    os.environ.update(MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    build = {"ddp": build_ddp, "fsdp2": build_fsdp2}[kind]
    both = ("modules", "parameters")
    watched = outcome(build, monitored(Path(folder) / "trace.arrow", record=both))
    Path(folder, f"differences.rank{rank}").write_text(" ".join(differences(outcome(build), watched)))
    Path(folder, f"truth.rank{rank}").write_text(json.dumps(last_step(kind)))
    dist.barrier()
    dist.destroy_process_group()

