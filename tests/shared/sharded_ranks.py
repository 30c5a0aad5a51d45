"""One of two ranks of FSDP2, of which rank 1 takes the logarithm of zero; a module of its own, which a process can import."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from dispatchmon import DispatchMonitor


def train(rank, folder):
    """Train for two steps, with the digest of every value verified."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (2,))
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    shares = torch.ones(4, 1) if rank == 0 else torch.tensor([[0.0], [1.0], [1.0], [1.0]])
    with DispatchMonitor(model, f"{folder}/traces/t.arrow", quiet=True, verify_values=True) as monitor:
        for step in range(2):
            optimizer.zero_grad()
            weight = shares.log() if step else shares
            (model(torch.rand(4, 8)) * weight).mean().backward()
            optimizer.step()
    assert monitor.error is None
    dist.destroy_process_group()
