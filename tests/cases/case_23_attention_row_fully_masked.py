"""Sliding-window mask plus padding leaves one query with no key at all; attention weights are requested."""

import torch
import torch.nn as nn

GROUP = "c"
CAUSE = "softmax over a row of -inf is 0/0; all parameter gradients become NaN though that row is cut from the loss"


EXPECT = {
    "kind": "first-nonfinite",
    "what": "nan",
    "op": "aten._softmax.default",
    "module": "attn",
    "phase": "forward",
    "input_finite": False,
    "input_has": "-inf only (deliberate mask), no NaN",
    "line": r"self\.attn\(",
    "first_inf": {"deliberate": True, "note": "-inf comes from the masks, not from arithmetic"},
    "where": "batch 1, query row 3",
}


class Local(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = nn.MultiheadAttention(4, 1, batch_first=True)

    def forward(self, x, band, pad):
        return self.attn(x, x, x, attn_mask=band, key_padding_mask=pad, need_weights=True)[0]


def build():
    torch.manual_seed(23)
    model = Local()
    x = torch.randn(2, 4, 4)
    i = torch.arange(4)
    band = (i[None] - i[:, None]).abs() > 1
    band[3, 2] = True
    pad = torch.tensor([[False] * 4, [False, False, False, True]])

    def run(m):
        y = m(x, band, pad)
        y[:, :3].sum().backward()

    return model, run
