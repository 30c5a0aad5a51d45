"""
Random programs with partly written memory, and the truth about each: it runs three times, what `empty` returns filled with
7, with -3 and with NaN. Unwritten memory mattered if a result differs, and its first reader is the first event whose result differs
(allocators, views and copies aside).

    python tests/judges/nonfinite_unwritten.py FIRST LAST [show]
"""

import collections
import random
import sys

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from dispatchmon.analysis.nonfinite.behaviour import behaviour
from dispatchmon.analysis.nonfinite.findings import ALARM
from nonfinite_fuzz import floats, report, traced, writes

N, M = 4, 6
FILLS = 7.0, -3.0, float("nan")


def program(seed):
    r = random.Random(seed)
    g = torch.Generator().manual_seed(seed)
    data = [torch.randn(N, M, generator=g) for _ in range(3)]
    mask = torch.rand(N, M, generator=g) > 0.5
    bufs, outs = [], []
    allocators = [
        lambda: torch.empty(N, M),
        lambda: torch.empty_like(data[0]),
        lambda: data[0].new_empty(N, M),
        lambda: torch.empty(M, N).t(),
        lambda: torch.empty(2 * N, M)[::2],
    ]
    bufs += [r.choice(allocators)() for _ in range(r.randint(1, 2))]
    for _ in range(r.randint(3, 9)):
        b, d = r.choice(bufs), r.choice(data)
        i, j = sorted(r.sample(range(N + 1), 2))
        k, m = sorted(r.sample(range(M + 1), 2))
        what = r.choice(
            [
                "fill",
                "rows",
                "cols",
                "block",
                "copy",
                "step",
                "zero",
                "normal",
                "out",
                "inplace",
                "row",
                "read",
                "readrows",
                "readblock",
                "matmul",
                "clone",
                "where",
                "cat",
                "mask",
                "index",
                "add",
                "stack",
                "relu",
                "cast",
                "maskfill",
                "contig",
            ]
        )
        if what == "fill":
            b.fill_(1.5)
        elif what == "rows":
            b[i:j] = d[i:j]
        elif what == "cols":
            b[:, k:m] = d[:, k:m]
        elif what == "block":
            b[i:j, k:m].copy_(d[i:j, k:m])
        elif what == "copy":
            b.copy_(d)
        elif what == "step":
            b[:, ::2] = d[:, ::2]
        elif what == "zero":
            b[i:j].zero_()
        elif what == "normal":
            torch.manual_seed(seed)
            b[i:j].normal_()
        elif what == "out":
            torch.add(d, 1, out=b)
        elif what == "inplace":
            b[i:j].add_(1)
        elif what == "row":
            b.select(0, i).copy_(d[i])
        elif what == "read":
            outs.append(b.sum())
        elif what == "readrows":
            outs.append(b[i:j].mul(2))
        elif what == "readblock":
            outs.append(b[i:j, k:m].mean())
        elif what == "matmul":
            outs.append(d.t() @ b)
        elif what == "clone":
            bufs.append(b.clone())
        elif what == "contig":
            bufs.append(b.contiguous())
        elif what == "cast":
            outs.append(b.double()[i:j].sum())
        elif what == "where":
            outs.append(torch.where(mask, d, b * 0 + d))
        elif what == "cat":
            bufs.append(torch.cat([b[:2], d[2:]]))
        elif what == "mask":
            outs.append(b[mask].sum())
        elif what == "maskfill":
            outs.append(b.masked_fill(mask, 0.0).abs())
        elif what == "index":
            outs.append(b[torch.tensor([i, min(j, N - 1)])].exp())
        elif what == "add":
            outs.append(b + d)
        elif what == "stack":
            outs.append(torch.stack([b[i:j], d[i:j]]).abs())
        elif what == "relu":
            outs.append(b.relu())
    return [o + 0 for o in outs]


class Fill(TorchDispatchMode):
    def __init__(self, value):
        super().__init__()
        self.value, self.log = value, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        with _disable_current_modes():
            if "empty" in str(func):
                for t in floats(out):
                    t.fill_(self.value)
            self.log.append((str(func), [t.detach().clone() for t in floats(out) + writes(func, args, kwargs)]))
        return out


def differ(several):
    """Whether the same tensor differs between the runs; NaN is equal to NaN."""
    first, *others = (torch.nan_to_num(t.double(), 12345.0) for t in several)
    return any(not torch.equal(first, other) for other in others)


def is_copied(op):
    """Allocators, views and copies only hand on what is there."""
    b = behaviour(op)
    return "empty" in op or "_to_copy" in op or (b is not None and (b.view or b.moves))


def runs(seed):
    """Whether unwritten memory matters, and the first event that used it."""
    outs, logs = [], []
    for value in FILLS:
        with Fill(value) as mode:
            outs.append(program(seed))
        logs.append(mode.log)
    matters = any(differ(several) for several in zip(*outs, strict=True))
    for i, calls in enumerate(zip(*logs, strict=False)):
        values = zip(*(tensors for _, tensors in calls), strict=True)
        if not is_copied(calls[0][0]) and any(differ(several) for several in values):
            return matters, i
    return matters, None


def judge(seed, tally, show=False):
    """Compare the findings on one program with the truth, and count."""
    matters, reader = runs(seed)
    _, search = traced(None, lambda: program(seed))
    found = [f for f in search.findings if f.reader is not None]
    alarms = [f.reader.event for f in found if f.verdict == ALARM]
    tally["matters" if matters else "does not matter", "alarm" if alarms else "silent"] += 1
    if matters and alarms:
        tally["first reader", "right" if min(alarms) == reader else "wrong"] += 1
    if show and (bool(alarms) != matters or (alarms and min(alarms) != reader)):
        print(seed, "matters", matters, reader, [(f.verdict, f.reader.op, f.reader.event, f.written) for f in found])


if __name__ == "__main__":
    counts = collections.Counter()
    for number in range(int(sys.argv[1]), int(sys.argv[2])):
        judge(number, counts, "show" in sys.argv)
    report(counts)
