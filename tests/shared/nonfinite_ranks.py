"""One of two ranks, of which rank 1 takes the logarithm of zero; a module of its own, which a spawned process can import."""

import torch
import torch.distributed as dist
import torch.nn as nn

from dispatchmon import DispatchMonitor


def train(rank, folder, by_hand):
    """Train for two steps; the gradients are summed by DistributedDataParallel, or by hand."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    called = model if by_hand else nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    shares = torch.ones(5, 1) if rank == 0 else torch.tensor([[0.0], [1.0], [1.0], [1.0], [1.0]])
    with DispatchMonitor(model, f"{folder}/traces/t.arrow", quiet=True) as monitor:
        for step in range(2):
            optimizer.zero_grad()
            weight = shares.log() if step else shares
            (called(torch.rand(5, 3)) * weight).mean().backward()
            for parameter in model.parameters() if by_hand else ():
                dist.all_reduce(parameter.grad)
            optimizer.step()
    assert monitor.error is None
    dist.destroy_process_group()
