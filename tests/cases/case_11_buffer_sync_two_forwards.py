"""Two forwards of a data-parallel critic with BatchNorm before one backward; buffers re-broadcast before each.

torch 2.13's own DistributedDataParallel hides the write with autograd._unsafe_preserve_version_counter, so it no
longer raises (run with --ddp to see); the wrapper below syncs the way DDP did when the reports were written.
"""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn

GROUP = "a"
CAUSE = "the second forward's buffer sync copies into running_mean/var, which batch_norm saved in the first forward"


EXPECT = {
    "kind": "inplace-after-save",
    "raises": r"modified by an inplace operation",
    "op": "aten.copy_.default",
    "phase": "forward",
    "module": "",
    "line": r"buf\.copy_\(part\.view_as\(buf\)\)",
    "victim_op": "aten.native_batch_norm.default",
    "victim_module": "net.1",
    "target": "net.1.running_mean (also running_var)",
    "blind_spot": "native_batch_norm itself writes running_mean/var but its schema does not say so and no version is bumped",
}


class Synced(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        with torch.no_grad():
            bufs = [b for b in self.net.buffers() if b.is_floating_point()]
            flat = torch.cat([b.reshape(-1) for b in bufs])
            dist.broadcast(flat, 0)
            for buf, part in zip(bufs, flat.split([b.numel() for b in bufs]), strict=True):
                buf.copy_(part.view_as(buf))
        return self.net(x)


def critic():
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 1))


def build(wrap=Synced):
    torch.manual_seed(11)
    if not dist.is_initialized():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo", init_method="file://" + tempfile.mktemp(prefix="case11_"), rank=0, world_size=1)
    model = wrap(critic())
    a, b = torch.randn(3, 2, 6, 6), torch.randn(3, 2, 6, 6)

    def run(m):
        (m(a).mean() - m(b).mean()).backward()

    return model, run
