"""Model built on the meta device, materialised, then loaded from its checkpoint: answers differ from run to run."""

import torch
import torch.nn as nn

GROUP = "d"
CAUSE = (
    "rotary frequencies are a non-persistent buffer, so the checkpoint has none: after to_empty they "
    "stay uninitialised"
)
REPORT = "huggingface/transformers#45902"


class Rotary(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.register_buffer("inv_freq", 0.01 ** (torch.arange(d // 2) / (d // 2)), persistent=False)

    def forward(self, x):
        angle = torch.outer(torch.arange(x.shape[0], dtype=x.dtype), self.inv_freq)
        a, b = x.chunk(2, -1)
        return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


class Attention(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.q, self.k, self.v, self.rotary = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d), Rotary(d)

    def forward(self, x):
        q, k = self.rotary(self.q(x)), self.rotary(self.k(x))
        return (q @ k.T / x.shape[-1] ** 0.5).softmax(-1) @ self.v(x)


class Reader(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.embed, self.attn = nn.Embedding(11, d), Attention(d)

    def forward(self, ids):
        return self.attn(self.embed(ids))


EXPECT = {"kind": "uninitialised-read", "origin_op": "aten.empty_like.default", "module": None, "phase": "forward",
          "line": r"m\.to_empty\(device=", "target": "attn.rotary.inv_freq", "written_fraction": 0.0,
          "first_reader": {"op": "aten.mul.Tensor", "module": "attn.rotary", "line": r"torch\.outer\("},
          "silent": True, "raises": None,
          "note": "all other empty_like of to_empty are filled by load_state_dict and must not be reported",
          "fix": "recompute the buffer after to_empty (reset_parameters), or make it persistent"}


def build():
    torch.manual_seed(312)
    checkpoint = Reader().state_dict()
    with torch.device("meta"):
        model = Reader()
    ids = torch.tensor([3, 1, 4, 1, 5, 9])

    def run(m):
        junk = [torch.full((32,), 3e4 * i) for i in range(4)]
        del junk
        m.to_empty(device="cpu")
        m.load_state_dict(checkpoint)
        with torch.no_grad():
            return m.eval()(ids)
    return model, run


if __name__ == "__main__":
    model, run = build()
    print("this run:", float(run(model).sum()), "frequencies", model.attn.rotary.inv_freq[:3].tolist())
    torch.use_deterministic_algorithms(True)      # fills empty tensors with NaN: shows that unwritten memory is read
    model, run = build()
    print("with empty memory filled with NaN:", float(run(model).sum()))
