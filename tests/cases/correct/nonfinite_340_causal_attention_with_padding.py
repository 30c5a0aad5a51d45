"""Decoder with an additive causal mask of -inf, a padding mask, and the fused attention; every row keeps one key."""
import torch
import torch.nn as nn
import torch.nn.functional as F

EXPECT = {"correct": True}


class Attention(nn.Module):
    def __init__(self, d, fused):
        super().__init__()
        self.qkv, self.fused = nn.Linear(d, 3 * d), fused

    def forward(self, x, pad):
        q, k, v = self.qkv(x).chunk(3, -1)
        t = x.shape[1]
        bias = torch.full((t, t), float("-inf")).triu(1)[None]
        bias = bias.masked_fill(pad[:, None, :], float("-inf"))
        if self.fused:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return ((q @ k.mT) / q.shape[-1] ** 0.5 + bias).softmax(-1) @ v


class Decoder(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.embed = nn.Embedding(9, d)
        self.attn = nn.ModuleList([Attention(d, False), Attention(d, True)])
        self.torch_layer = nn.MultiheadAttention(d, 2, batch_first=True)
        self.head = nn.Linear(d, 9)

    def forward(self, ids):
        pad = ids == 0
        x = self.embed(ids)
        for a in self.attn:
            x = x + a(x, pad)
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        x = x + self.torch_layer(x, x, x, attn_mask=mask, key_padding_mask=torch.zeros_like(x[..., 0]).masked_fill(
            pad, float("-inf")), need_weights=True)[0]
        return self.head(x)


def build():
    torch.manual_seed(340)
    model = Decoder()
    ids = torch.tensor([[3, 1, 4, 1, 5], [2, 7, 1, 0, 0]])

    def run(m):
        opt = torch.optim.AdamW(m.parameters(), lr=1e-3)
        losses = []
        for _ in range(2):
            opt.zero_grad()
            loss = F.cross_entropy(m(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)
            loss.backward()
            opt.step()
            losses.append(loss.detach())
        return torch.stack(losses)
    return model, run


if __name__ == "__main__":
    model, run = build()
    assert run(model).isfinite().all()
    assert all(p.isfinite().all() for p in model.parameters())
