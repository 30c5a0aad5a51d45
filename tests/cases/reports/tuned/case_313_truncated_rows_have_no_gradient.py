"""Own packing of ragged sequences: training diverges in some runs as soon as one sequence is longer than the limit."""

import torch
import torch.nn as nn

GROUP = "d"
CAUSE = (
    "backward allocates the gradient with new_empty and writes the kept rows only; the truncated rows "
    "stay uninitialised"
)
REPORT = "pytorch/FBGEMM#5754"


class PackSegments(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, lengths, limit):
        ctx.lengths, ctx.limit = lengths, limit
        out = rows.new_zeros(len(lengths), limit, rows.shape[1])
        at = 0
        for i, n in enumerate(lengths):
            k = min(n, limit)
            out[i, :k] = rows[at:at + k]
            at += n
        return out

    @staticmethod
    def backward(ctx, grad):
        back = grad.new_empty(sum(ctx.lengths), grad.shape[2])
        at = 0
        for i, n in enumerate(ctx.lengths):
            k = min(n, ctx.limit)
            back[at:at + k] = grad[i, :k]
            at += n
        return back, None, None


class Pack(nn.Module):
    def forward(self, rows, lengths):
        return PackSegments.apply(rows, lengths, 16)


class Events(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.encode, self.pack, self.head = nn.Linear(8, d), Pack(), nn.Linear(d, 1)

    def forward(self, events, lengths):
        seq = self.pack(torch.tanh(self.encode(events)), lengths)
        return self.head(seq.sum(1)).squeeze(-1)


EXPECT = {"kind": "uninitialised-read", "origin_op": "aten.new_empty.default", "phase": "backward", "module": "pack",
          "module_basis": "forward node", "line": r"back = grad\.new_empty", "written_fraction": 0.8,
          "first_reader": {"op": "aten.tanh_backward.default", "phase": "backward",
                           "line": r"torch\.tanh\(self\.encode\(events\)\)"},
          "step": 1, "silent": True, "raises": None,
          "fix": "allocate with new_zeros: truncated rows must get a zero gradient"}


def build():
    torch.manual_seed(313)
    model = Events()
    batches = [([10, 16], torch.randn(26, 8), torch.randn(2)), ([24, 16], torch.randn(40, 8), torch.randn(2))]

    def run(m):
        opt = torch.optim.SGD(m.parameters(), lr=1e-3)
        for lengths, events, y in batches:
            loss = (m(events, lengths) - y).pow(2).mean()
            junk = torch.full((40, 32), 1e30)         # what other work leaves in the allocator
            del junk
            opt.zero_grad()
            loss.backward()
            opt.step()
        return loss.detach()
    return model, run


if __name__ == "__main__":
    model, run = build()
    run(model)
    print("this run: encode.weight", model.encode.weight[0, :3].tolist())
    torch.use_deterministic_algorithms(True)      # fills every new_empty with NaN: shows that unwritten memory is read
    model, run = build()
    run(model)
    print("with empty memory filled with NaN: encode.weight", model.encode.weight[0, :3].tolist())
