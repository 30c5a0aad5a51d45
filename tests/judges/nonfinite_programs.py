"""Correct programs full of harmless NaN, Inf and unwritten memory. None of them is to raise an alarm."""

import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

INF, NAN = float("inf"), float("nan")
PROGRAMS = []


def correct(make=None):
    def keep(f):
        PROGRAMS.append((f.__name__, make, f))
        return f

    return keep


def train(model, loss_of, steps=2, optimizer=torch.optim.AdamW):
    opt = optimizer(model.parameters(), lr=1e-3)
    for _ in range(steps):
        opt.zero_grad()
        loss_of(model).backward()
        opt.step()


class Attention(nn.Module):
    def __init__(self, style, d=8, heads=2):
        super().__init__()
        self.qkv, self.out, self.style, self.heads = nn.Linear(d, 3 * d), nn.Linear(d, d), style, heads

    def forward(self, x, pad=None):
        b, t, d = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        causal = torch.ones(t, t, dtype=torch.bool).tril()
        if self.style == "sdpa":
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        elif self.style == "sdpa_mask":
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=causal & ~pad[:, None, None])
        else:
            s = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
            if self.style == "fill":
                s = s.masked_fill(~causal, -INF)
            elif self.style == "fill_":
                s.masked_fill_(~causal, -INF)
            elif self.style == "add":
                s = s + torch.zeros(t, t).masked_fill(~causal, -INF)
            elif self.style == "triu":
                s = s + torch.triu(torch.full((t, t), -INF), 1)
            elif self.style == "log":
                s = s + causal.float().log()
            elif self.style == "where":
                s = torch.where(causal, s, torch.tensor(-INF))
            elif self.style == "setitem":
                s = s.clone()
                s[:, :, ~causal] = -INF
            elif self.style == "finfo":
                s = s + (1 - causal.float()) * torch.finfo(s.dtype).min
            elif self.style == "pad":
                s = s.masked_fill(pad[:, None, None], -INF)
            elif self.style == "einsum":
                s = torch.einsum("bhqd,bhkd->bhqk", q, k) + torch.zeros(t, t).masked_fill_(~causal, -INF)
            a = s.softmax(-1)
            if self.style == "deadrow":
                s = s.masked_fill(torch.ones_like(causal).tril(-1).logical_not(), -INF)
                a = torch.softmax(s.detach(), -1).nan_to_num(0.0)
            y = a @ v
        return self.out(y.transpose(1, 2).reshape(b, t, d))


for style in [
    "sdpa",
    "sdpa_mask",
    "fill",
    "fill_",
    "add",
    "triu",
    "log",
    "where",
    "setitem",
    "finfo",
    "pad",
    "einsum",
    "deadrow",
]:

    def run(m, style=style):
        x, pad = torch.randn(2, 5, 8), torch.zeros(2, 5, dtype=torch.bool)
        pad[1, 3:] = True
        train(m, lambda m: m(x, pad).pow(2).mean())

    run.__name__ = "attention_" + style
    correct(lambda style=style: Attention(style))(run)


@correct(lambda: nn.MultiheadAttention(8, 2, batch_first=True))
def multihead_key_padding(m):
    x = torch.randn(2, 5, 8)
    pad = torch.zeros(2, 5, dtype=torch.bool)
    pad[0, 4] = True
    train(
        m,
        lambda m: m(x, x, x, key_padding_mask=pad, attn_mask=nn.Transformer.generate_square_subsequent_mask(5))[
            0
        ].mean(),
    )


@correct(lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2))
def encoder_eval_fast_path(m):
    m.eval()
    x = torch.randn(2, 5, 8)
    pad = torch.zeros(2, 5, dtype=torch.bool)
    pad[0, 4] = True
    with torch.no_grad():
        m(x, src_key_padding_mask=pad)
    m.train()
    train(m, lambda m: m(x, src_key_padding_mask=pad).mean())


@correct(lambda: nn.Linear(6, 9))
def masked_logits_cross_entropy(m):
    x, y = torch.randn(4, 6), torch.tensor([0, 1, 2, 3])
    train(m, lambda m: F.cross_entropy(m(x).masked_fill(torch.arange(9) > 5, -INF), y))


@correct(lambda: nn.Linear(6, 9))
def log_softmax_gather(m):
    x, y = torch.randn(4, 6), torch.tensor([0, 1, 2, 3])
    train(m, lambda m: -F.log_softmax(m(x).masked_fill(torch.arange(9) > 5, -INF), -1).gather(1, y[:, None]).mean())


@correct(lambda: nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 4)))
def amp_grad_scaler_skips(m):
    opt, scaler = (
        torch.optim.Adam(m.parameters(), lr=1e-3),
        torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=3),
    )
    x, y = torch.randn(8, 6) * 20, torch.randn(8, 4) * 50
    for i in range(12):
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = m(x)
        loss = F.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        if i % 2:
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()


@correct(
    lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(True), nn.Dropout(), nn.Flatten(), nn.Linear(144, 3)
    )
)
def deterministic_fill(m):
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        x, y = torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 0])
        z = torch.empty(4, 3)
        z.copy_(torch.randn(4, 3))
        w = torch.empty_like(z).normal_()
        parts = torch.empty(4, 6)
        parts[:, :3] = z
        parts[:, 3:] = w
        out = torch.empty(4, 3)
        torch.add(z, w, out=out)
        torch.empty(5).resize_(9).zero_().sum()
        train(m, lambda m: F.cross_entropy(m(x) + out + parts[:, :3], y) + torch.empty(3).uniform_().sum())
    finally:
        torch.use_deterministic_algorithms(False)


@correct(lambda: nn.GRU(4, 5, batch_first=True))
def packed_rnn(m):
    x = torch.randn(3, 6, 4)

    def loss(m):
        y, h = m(nn.utils.rnn.pack_padded_sequence(x, torch.tensor([6, 4, 2]), batch_first=True))
        y, _n = nn.utils.rnn.pad_packed_sequence(y, batch_first=True, padding_value=-INF)
        return y.max(1)[0].mean() + h.mean()

    train(m, loss)


@correct(lambda: nn.Linear(6, 20))
def topk_filter_and_sample(m):
    with torch.no_grad():
        logits = m(torch.randn(3, 6))
        low = logits < torch.topk(logits, 5)[0][:, -1:]
        logits = logits.masked_fill(low, -INF)
        s, i = torch.sort(logits, descending=True)
        remove = s.softmax(-1).cumsum(-1) > 0.9
        remove[:, 1:] = remove[:, :-1].clone()
        remove[:, 0] = False
        logits = logits.masked_fill(torch.zeros_like(remove).scatter(1, i, remove), -INF)
        torch.multinomial(logits.softmax(-1), 1)
        torch.topk(logits, 8)[0].exp()
        logits.argmax(-1)


@correct(lambda: nn.Linear(6, 11))
def beam_search(m):
    with torch.no_grad():
        scores = torch.full((2, 3), -INF)
        scores[:, 0] = 0
        h = torch.randn(2, 3, 6)
        for _ in range(4):
            total = scores[:, :, None] + F.log_softmax(m(h), -1)
            scores, at = total.view(2, -1).topk(3)
            h = h.gather(1, (at // 11)[..., None].expand(-1, -1, 6))


class Observer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("low", torch.tensor(INF))
        self.register_buffer("high", torch.tensor(-INF))
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        y = self.lin(x)
        self.low.copy_(torch.minimum(self.low, y.detach().amin()))
        self.high.copy_(torch.maximum(self.high, y.detach().amax()))
        return y


@correct(Observer)
def observer_minima(m):
    train(m, lambda m: m(torch.randn(3, 4)).mean())
    best = torch.full((), INF)
    for _ in range(3):
        best = torch.minimum(best, m(torch.randn(3, 4)).pow(2).mean().detach())


@correct(lambda: nn.Linear(4, 4))
def division_by_inf_and_exp_minus_inf(m):
    train(
        m,
        lambda m: (
            m(torch.randn(3, 4)) / torch.full((4,), INF) + torch.exp(torch.full((4,), -INF)) + m.weight.sum()
        ).sum(),
    )


@correct(lambda: nn.Linear(4, 1))
def missing_labels_are_nan(m):
    x, y = torch.randn(8, 4), torch.randn(8, 1)
    y[::3] = NAN
    train(m, lambda m: F.mse_loss(m(x)[~y.isnan()], y[~y.isnan()]))
    train(m, lambda m: torch.where(y.isnan(), torch.zeros(()), m(x) - y.nan_to_num()).pow(2).mean())
    y.nanmean()
    y.nansum()


@correct(lambda: nn.Linear(4, 1))
def nan_filled_history(m):
    log = torch.full((10,), NAN)
    for i in range(3):
        log[i] = m(torch.randn(2, 4)).mean().detach()
    log.nanmean()
    log[:3].mean()
    torch.nanquantile(log, 0.5)


@correct(lambda: nn.Linear(8, 8))
def cache_from_empty_used_right(m):
    with torch.no_grad():
        cache = torch.empty(16, 8)
        for t in range(4):
            cache[t] = m(torch.randn(8))
            live = cache[: t + 1]
            (torch.randn(1, 8) @ live.T).softmax(-1) @ live
        moved = cache.clone()
        moved[:4].sum()
        torch.cat([cache, cache])[:4].sum()
        torch.zeros_like(cache).sum()
        cache.to(torch.float64)[:2].sum()


@correct(lambda: nn.Linear(8, 8))
def cache_from_empty_masked_with_where(m):
    with torch.no_grad():
        cache = torch.empty(2, 16, 8)
        cache[:, :4] = m(torch.randn(2, 4, 8))
        live = torch.arange(16) < 4
        k, v = (torch.where(live[:, None], c, torch.zeros(())) for c in cache)
        ((torch.randn(1, 8) @ k.T).masked_fill(~live, -INF)).softmax(-1) @ v


@correct(lambda: nn.Linear(8, 3))
def crf_forward_with_minus_inf(m):
    trans = torch.zeros(3, 3)
    trans[0, 2] = -INF

    def loss(m):
        e = m(torch.randn(5, 8))
        a = e[0]
        for t in range(1, 5):
            a = torch.logsumexp(a[:, None] + trans, 0) + e[t]
        return torch.logsumexp(a, 0) - e.sum()

    train(m, loss)


@correct(lambda: nn.Linear(8, 5))
def ctc_loss_zero_infinity(m):
    train(
        m,
        lambda m: F.ctc_loss(
            F.log_softmax(m(torch.randn(7, 2, 8)), -1),
            torch.randint(1, 5, (2, 6)),
            torch.tensor([7, 3]),
            torch.tensor([4, 6]),
            zero_infinity=True,
        ),
    )


@correct(lambda: nn.Linear(4, 3))
def gumbel_hard_and_dropout(m):
    train(m, lambda m: (F.gumbel_softmax(F.dropout(m(torch.randn(5, 4))), hard=True) * torch.arange(3.0)).mean())


@correct(lambda: nn.MaxPool2d(2, padding=1))
def max_pool_pads_with_minus_inf(m):
    x = torch.randn(1, 1, 5, 5, requires_grad=True)
    m(F.pad(x, (1, 1, 1, 1), value=-INF)).clamp(min=-9).sum().backward()


@correct(lambda: nn.Linear(4, 4))
def norm_clip_inf_ord_and_bounds(m):
    m(torch.randn(3, 4)).pow(2).mean().backward()
    nn.utils.clip_grad_norm_(m.parameters(), INF, norm_type=INF)
    m.weight.grad.clamp_(-INF, INF)
    torch.histc(torch.randn(9))
    torch.clamp(torch.randn(3), max=INF)
    torch.isin(torch.tensor([INF]), torch.tensor([INF])).any()


@correct(lambda: nn.Sequential(nn.Linear(4, 8), nn.RReLU(), nn.Linear(8, 2)))
def rrelu_train_and_deepcopy(m):
    train(m, lambda m: m(torch.randn(3, 4)).mean())
    copy.deepcopy(m)
    m.load_state_dict(m.state_dict())


@correct(lambda: nn.Linear(4, 4))
def parameters_made_in_place(m):
    w = nn.Parameter(torch.empty(6, 6))
    nn.init.xavier_uniform_(w)
    nn.init.orthogonal_(w)
    nn.init.trunc_normal_(w)
    nn.init.eye_(w)
    (w @ w).sum().backward()
    lstm = nn.LSTM(3, 3)
    e = nn.Embedding(5, 3, padding_idx=0)
    nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))(torch.randn(1, 3)).sum().backward()
    lstm(e(torch.tensor([[0, 1]])))[0].sum().backward()


@correct(lambda: nn.Linear(4, 6))
def sinkhorn_and_distance_with_diagonal_inf(m):
    def loss(m):
        z = F.normalize(m(torch.randn(6, 4)), dim=-1)
        sim = z @ z.T / 0.1
        sim = sim.masked_fill(torch.eye(6, dtype=torch.bool), -INF)
        d = torch.cdist(z, z) + torch.diag(torch.full((6,), INF))
        return F.cross_entropy(sim, torch.tensor([1, 0, 3, 2, 5, 4])) + d.min(1)[0].mean()

    train(m, loss)
