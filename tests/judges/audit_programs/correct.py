"""
Programs that write in place, step optimizers, recompute and share memory as they should: the audit must stay silent.

Each returns the model and what to run.
"""

import copy
import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

PROGRAMS = {}


def prog(f):
    PROGRAMS[f.__name__] = f
    return f


class Block(nn.Module):
    def __init__(s, i, o, st=1):
        super().__init__()
        s.c1 = nn.Conv2d(i, o, 3, st, 1, bias=False)
        s.b1 = nn.BatchNorm2d(o)
        s.c2 = nn.Conv2d(o, o, 3, 1, 1, bias=False)
        s.b2 = nn.BatchNorm2d(o)
        s.r = nn.ReLU(inplace=True)
        s.d = nn.Sequential(nn.Conv2d(i, o, 1, st, bias=False), nn.BatchNorm2d(o)) if (i != o or st != 1) else None

    def forward(s, x):
        i = x if s.d is None else s.d(x)
        y = s.r(s.b1(s.c1(x)))
        y = s.b2(s.c2(y))
        y += i
        return s.r(y)


class Res(nn.Module):
    def __init__(s):
        super().__init__()
        s.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2))
        s.l = nn.Sequential(Block(8, 8), Block(8, 16, 2), Block(16, 16))
        s.fc = nn.Linear(16, 4)

    def forward(s, x):
        return s.fc(F.dropout(s.l(s.stem(x)).mean((2, 3)), 0.1, s.training, inplace=True))


@prog
def resnet_inplace_sgd():
    m = Res()
    o = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    x, y = torch.randn(4, 3, 16, 16), torch.randint(0, 4, (4,))

    def run():
        for _ in range(3):
            o.zero_grad()
            F.cross_entropy(m(x), y).backward()
            nn.utils.clip_grad_norm_(m.parameters(), 1.0)
            o.step()
        m.eval()
        with torch.no_grad():
            m(x)

    return m, run


class GPT(nn.Module):
    def __init__(s, ck=False, V=31, D=16, H=2, L=2, T=12):
        super().__init__()
        s.e = nn.Embedding(V, D)
        s.p = nn.Parameter(torch.randn(T, D) * 0.02)
        s.b = nn.ModuleList(
            nn.ModuleDict(
                dict(
                    n1=nn.LayerNorm(D),
                    q=nn.Linear(D, 3 * D),
                    o=nn.Linear(D, D),
                    n2=nn.LayerNorm(D),
                    f=nn.Linear(D, 4 * D),
                    g=nn.Linear(4 * D, D),
                )
            )
            for _ in range(L)
        )
        s.n = nn.LayerNorm(D)
        s.h = nn.Linear(D, V, bias=False)
        s.h.weight = s.e.weight
        s.H = H
        s.ck = ck

    def blk(s, b, x):
        B, T, D = x.shape
        q, k, v = b["q"](b["n1"](x)).view(B, T, 3, s.H, D // s.H).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, D)
        x = x + F.dropout(b["o"](a), 0.1, s.training)
        return x + b["g"](F.gelu(b["f"](b["n2"](x))))

    def forward(s, i):
        x = s.e(i)
        x = x * 4
        x += s.p[: i.shape[1]]
        for b in s.b:
            x = checkpoint(s.blk, b, x, use_reentrant=s.ck == "re") if s.ck else s.blk(b, x)
        return s.h(s.n(x))


def lm(m, o, steps=3, accum=1, clip=True):
    i = torch.randint(0, 31, (2, 12))

    def run():
        for _ in range(steps):
            o.zero_grad()
            for _ in range(accum):
                l = m(i)
                (F.cross_entropy(l[:, :-1].reshape(-1, 31), i[:, 1:].reshape(-1)) / accum).backward()
            if clip:
                nn.utils.clip_grad_norm_(m.parameters(), 1.0)
            o.step()

    return m, run


@prog
def gpt_adamw_fused():
    m = GPT()
    return lm(m, torch.optim.AdamW(m.parameters(), lr=1e-2, fused=True))


@prog
def gpt_adam_foreach_accumulate():
    m = GPT()
    return lm(m, torch.optim.Adam(m.parameters(), lr=1e-2, foreach=True), accum=3)


@prog
def gpt_checkpoint_nonreentrant():
    m = GPT("non")
    return lm(m, torch.optim.AdamW(m.parameters(), lr=1e-2, fused=True))


@prog
def gpt_checkpoint_reentrant():
    m = GPT("re")
    return lm(m, torch.optim.SGD(m.parameters(), lr=1e-2, foreach=True), accum=2)


@prog
def gpt_optimizer_in_backward():
    m = GPT()
    m.h.weight = nn.Parameter(m.e.weight.detach().clone())
    for p in m.parameters():
        o = torch.optim.SGD([p], lr=0.1, fused=True)
        p.register_post_accumulate_grad_hook(lambda p, o=o: (o.step(), o.zero_grad()) and None)
    i = torch.randint(0, 31, (2, 12))

    def run():
        for _ in range(3):
            F.cross_entropy(m(i)[:, :-1].reshape(-1, 31), i[:, 1:].reshape(-1)).backward()

    return m, run


class UNet(nn.Module):
    def __init__(s):
        super().__init__()
        c = lambda i, o: nn.Sequential(
            nn.Conv2d(i, o, 3, 1, 1),
            nn.GroupNorm(2, o),
            nn.SiLU(inplace=True),
            nn.Conv2d(o, o, 3, 1, 1),
            nn.BatchNorm2d(o),
            nn.LeakyReLU(0.1, inplace=True),
        )
        s.a, s.b, s.c = c(3, 4), c(4, 8), c(8, 8)
        s.u = nn.ConvTranspose2d(8, 4, 2, 2)
        s.d = c(8, 4)
        s.o = nn.Conv2d(4, 2, 1)

    def forward(s, x):
        a = s.a(x)
        b = s.b(F.max_pool2d(a, 2))
        b = s.c(b)
        u = s.u(b)
        u = torch.cat([u, a], 1)
        return torch.sigmoid_(s.o(s.d(u)))


@prog
def unet_adam_foreach():
    m = UNet()
    o = torch.optim.Adam(m.parameters(), foreach=True)
    x, y = torch.randn(2, 3, 8, 8), torch.rand(2, 2, 8, 8)

    def run():
        for _ in range(3):
            o.zero_grad(set_to_none=False)
            F.binary_cross_entropy(m(x), y).backward()
            o.step()

    return m, run


class GAN(nn.Module):
    def __init__(s):
        super().__init__()
        s.G = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(True), nn.Linear(16, 6), nn.Tanh())
        s.D = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.LeakyReLU(0.2, inplace=True), nn.Linear(16, 1))


@prog
def gan_right_two_forwards_fused():
    m = GAN()
    od = torch.optim.Adam(m.D.parameters(), fused=True)
    og = torch.optim.Adam(m.G.parameters(), fused=True)
    r = torch.randn(8, 6)
    bce = F.binary_cross_entropy_with_logits

    def run():
        for _ in range(3):
            f = m.G(torch.randn(8, 4))
            od.zero_grad()
            (bce(m.D(r), torch.ones(8, 1)) + bce(m.D(f.detach()), torch.zeros(8, 1))).backward()
            od.step()
            og.zero_grad()
            bce(m.D(f), torch.ones(8, 1)).backward()
            og.step()

    return m, run


@prog
def wgan_gp_double_backward():
    m = nn.ModuleDict(
        dict(G=nn.Linear(4, 6), D=nn.Sequential(nn.Linear(6, 16), nn.SiLU(inplace=True), nn.Linear(16, 1)))
    )
    od = torch.optim.Adam(m["D"].parameters(), fused=True)
    og = torch.optim.Adam(m["G"].parameters(), foreach=True)

    def run():
        for _ in range(3):
            r, f = torch.randn(8, 6), m["G"](torch.randn(8, 4))
            x = (r + 0.3 * (f.detach() - r)).requires_grad_()
            (g,) = torch.autograd.grad(m["D"](x).sum(), x, create_graph=True)
            od.zero_grad()
            (m["D"](f.detach()).mean() - m["D"](r).mean() + 10 * ((g.norm(dim=1) - 1) ** 2).mean()).backward()
            od.step()
            og.zero_grad()
            (-m["D"](f).mean()).backward()
            og.step()

    return m, run


@prog
def lstm_tbptt_detach():
    m = nn.ModuleDict(dict(r=nn.LSTM(3, 8, 2, batch_first=True, dropout=0.1), o=nn.Linear(8, 1)))
    o = torch.optim.RMSprop(m.parameters(), foreach=True)

    def run():
        h = None
        for _ in range(4):
            y, h = m["r"](torch.randn(2, 5, 3), h)
            o.zero_grad()
            m["o"](y).pow(2).mean().backward()
            o.step()
            h = tuple(t.detach() for t in h)

    return m, run


@prog
def rnncell_state_inplace_no_grad():
    m = nn.ModuleDict(dict(r=nn.GRUCell(3, 8), o=nn.Linear(8, 1)))
    m.register_buffer("state", torch.zeros(2, 8))
    o = torch.optim.SGD(m.parameters(), lr=0.1)

    def run():
        for _ in range(3):
            h = m.state.clone()
            l = 0
            for _ in range(3):
                h = m["r"](torch.randn(2, 3), h)
                l = l + m["o"](h).pow(2).mean()
            o.zero_grad()
            l.backward()
            o.step()
            with torch.no_grad():
                m.state.copy_(h)

    return m, run


@prog
def mean_teacher_ema_data():
    s = Res()
    t = copy.deepcopy(s)
    m = nn.ModuleList([s, t])
    o = torch.optim.SGD(s.parameters(), lr=0.1)
    x = torch.randn(4, 3, 16, 16)

    def run():
        for _ in range(3):
            with torch.no_grad():
                y = t(x)
            F.mse_loss(s(x), y).backward()
            o.step()
            o.zero_grad()
            for a, b in zip(t.parameters(), s.parameters()):
                a.data.mul_(0.9).add_(b.data, alpha=0.1)

    return m, run


@prog
def moco_queue_clone():
    m = nn.Linear(6, 4)
    m.register_buffer("queue", F.normalize(torch.randn(4, 12), dim=0))
    o = torch.optim.SGD(m.parameters(), lr=0.1)

    def run():
        for s in range(3):
            q = F.normalize(m(torch.randn(4, 6)), dim=1)
            k = q.detach()
            l = torch.cat([(q * k).sum(1, keepdim=True), q @ m.queue.clone()], 1)
            with torch.no_grad():
                m.queue[:, s * 4 : s * 4 + 4] = k.T
            o.zero_grad()
            F.cross_entropy(l, torch.zeros(4, dtype=torch.long)).backward()
            o.step()

    return m, run


@prog
def spectral_norm_two_forwards():
    m = nn.Sequential(
        nn.utils.parametrizations.spectral_norm(nn.Linear(6, 8)),
        nn.ReLU(True),
        nn.utils.spectral_norm(nn.Linear(8, 4)),
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 1)),
    )
    o = torch.optim.Adam(m.parameters(), fused=True)

    def run():
        for _ in range(3):
            o.zero_grad()
            (m(torch.randn(4, 6)).mean() - m(torch.randn(4, 6)).mean()).backward()
            o.step()

    return m, run


@prog
def sam_two_backwards():
    m = nn.Sequential(nn.Linear(6, 8), nn.ReLU(True), nn.Linear(8, 1))
    o = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, foreach=True)
    x = torch.randn(4, 6)

    def run():
        for _ in range(3):
            m(x).pow(2).mean().backward()
            e = []
            with torch.no_grad():
                for p in m.parameters():
                    d = p.grad * 0.05
                    p.data.add_(d)
                    e.append(d)
            o.zero_grad()
            m(x).pow(2).mean().backward()
            for p, d in zip(m.parameters(), e):
                p.data.sub_(d)
            o.step()
            o.zero_grad()

    return m, run


@prog
def maml_functional():
    m = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    o = torch.optim.Adam(m.parameters(), fused=True)

    def run():
        for _ in range(3):
            x = torch.randn(4, 3)
            ps = dict(m.named_parameters())
            l = torch.func.functional_call(m, ps, (x,)).pow(2).mean()
            gs = torch.autograd.grad(l, list(ps.values()), create_graph=True)
            ps = {k: p - 0.1 * g for (k, p), g in zip(ps.items(), gs)}
            o.zero_grad()
            torch.func.functional_call(m, ps, (x,)).pow(2).mean().backward()
            o.step()

    return m, run


@prog
def ppo_epochs():
    m = nn.ModuleDict(dict(p=nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)), v=nn.Linear(4, 1)))
    o = torch.optim.Adam(m.parameters(), foreach=True)

    def run():
        for _ in range(2):
            x = torch.randn(16, 4)
            with torch.no_grad():
                d = torch.distributions.Categorical(logits=m["p"](x))
                a = d.sample()
                lp = d.log_prob(a)
                adv = torch.randn(16) - m["v"](x)[:, 0]
            for _ in range(3):
                d = torch.distributions.Categorical(logits=m["p"](x))
                r = (d.log_prob(a) - lp).exp()
                l = (
                    -torch.min(r * adv, r.clamp(0.8, 1.2) * adv).mean()
                    + (m["v"](x)[:, 0] - adv).pow(2).mean()
                    - 0.01 * d.entropy().mean()
                )
                o.zero_grad()
                l.backward()
                nn.utils.clip_grad_norm_(m.parameters(), 0.5)
                o.step()

    return m, run


@prog
def transformer_encoder_autocast():
    m = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
    o = torch.optim.AdamW(m.parameters(), fused=True)

    def run():
        for _ in range(3):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                l = m(torch.randn(2, 5, 8)).float().pow(2).mean()
            o.zero_grad()
            l.backward()
            o.step()

    return m, run


@prog
def manual_attention_masked_fill_inplace():
    m = nn.ModuleDict(dict(q=nn.Linear(8, 24), o=nn.Linear(8, 8)))
    o = torch.optim.Adagrad(m.parameters(), foreach=True)
    k = torch.ones(5, 5).tril().bool()

    def run():
        for _ in range(3):
            x = torch.randn(2, 5, 8)
            q, kk, v = m["q"](x).chunk(3, -1)
            s = q @ kk.transpose(1, 2)
            s /= 8**0.5
            s.masked_fill_(~k, float("-inf"))
            y = m["o"](s.softmax(-1) @ v)
            y += x
            o.zero_grad()
            y.pow(2).mean().backward()
            o.step()

    return m, run


@prog
def embedding_maxnorm_bag_sparse():
    m = nn.ModuleDict(
        dict(
            a=nn.Embedding(10, 4, max_norm=1.0),
            b=nn.EmbeddingBag(10, 4, mode="mean"),
            c=nn.Embedding(10, 4, sparse=True),
        )
    )
    o = torch.optim.SGD(m.parameters(), lr=0.1)

    def run():
        for _ in range(3):
            i = torch.randint(0, 10, (3, 4))
            o.zero_grad()
            (m["a"](i).mean(1) + m["b"](i) + m["c"](i).sum(1)).pow(2).mean().backward()
            o.step()

    return m, run


@prog
def grad_scaler_loop():
    m = Res()
    o = torch.optim.SGD(m.parameters(), lr=0.1, foreach=True)
    sc = torch.amp.GradScaler("cpu")
    x, y = torch.randn(4, 3, 16, 16), torch.randint(0, 4, (4,))

    def run():
        for _ in range(3):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                l = F.cross_entropy(m(x).float(), y)
            o.zero_grad()
            sc.scale(l).backward()
            sc.unscale_(o)
            nn.utils.clip_grad_value_(m.parameters(), 1.0)
            sc.step(o)
            sc.update()

    return m, run


@prog
def swa_lbfgs_schedule():
    m = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Hardswish(inplace=True), nn.Linear(4, 1))
    o = torch.optim.LBFGS(m.parameters(), max_iter=4)
    x = torch.randn(8, 3)
    a = torch.optim.swa_utils.AveragedModel(m)

    def run():
        for _ in range(2):

            def c():
                o.zero_grad()
                l = m(x).pow(2).mean()
                l.backward()
                return l

            o.step(c)
            a.update_parameters(m)

    return m, run


class SwishF(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        y.sigmoid_()
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * (y * (1 + x * (1 - y)))


class InplaceF(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.mul_(2.0)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g * 2


@prog
def custom_functions():
    m = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    o = torch.optim.NAdam(m.parameters(), foreach=True)

    def run():
        for _ in range(3):
            o.zero_grad()
            m[1](SwishF.apply(InplaceF.apply(m[0](torch.randn(8, 3))))).pow(2).mean().backward()
            o.step()

    return m, run


@prog
def retain_graph_two_losses():
    m = nn.Sequential(nn.Linear(3, 8), nn.ReLU(True), nn.Linear(8, 2))
    o = torch.optim.Adam(m.parameters(), fused=True)

    def run():
        for _ in range(3):
            y = m(torch.randn(8, 3))
            o.zero_grad()
            y[:, 0].pow(2).mean().backward(retain_graph=True)
            y[:, 1].abs().mean().backward()
            o.step()

    return m, run


@prog
def save_on_cpu_offload():
    m = nn.Sequential(nn.Linear(3, 8), nn.ReLU(True), nn.Linear(8, 2))
    o = torch.optim.Adam(m.parameters(), fused=True)

    def run():
        for _ in range(3):
            with torch.autograd.graph.save_on_cpu():
                y = m(torch.randn(8, 3))
            o.zero_grad()
            y.pow(2).mean().backward()
            o.step()

    return m, run


@prog
def in_place_views_right():
    m = nn.Sequential(nn.Linear(3, 8))
    o = torch.optim.SGD(m.parameters(), lr=0.1)

    def run():
        for _ in range(3):
            y = m(torch.randn(4, 3))
            y[:, :4].mul_(2)
            y[:, 4:].sigmoid_()
            z = torch.zeros(4, 8)
            z[0] = y[0]
            z[1:] = y[1:] * 2
            o.zero_grad()
            z.pow(2).mean().backward()
            o.step()

    return m, run


@prog
def ddp_batchnorm_two_forwards():
    import torch.distributed as dist

    if not dist.is_initialized():
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        dist.init_process_group("gloo", init_method="file://" + tempfile.mktemp(), rank=0, world_size=1)
    c = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(True), nn.Flatten(), nn.Linear(48, 1))
    m = nn.parallel.DistributedDataParallel(c)
    o = torch.optim.Adam(m.parameters(), fused=True)

    def run():
        for _ in range(3):
            o.zero_grad()
            (m(torch.randn(3, 2, 6, 6)).mean() - m(torch.randn(3, 2, 6, 6)).mean()).backward()
            o.step()

    return m, run


@prog
def zero_redundancy_and_syncbn():
    from torch.distributed.optim import ZeroRedundancyOptimizer as Z

    m = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)))
    o = Z(m.parameters(), torch.optim.Adam, lr=0.1)

    def run():
        for _ in range(3):
            o.zero_grad()
            m(torch.randn(5, 3)).pow(2).mean().backward()
            o.step()

    return m, run


@prog
def fsdp2_fully_shard():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    m = nn.Sequential(nn.Linear(8, 8), nn.ReLU(True), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    mesh = init_device_mesh("cpu", (1,))
    for l in (m[0], m[2], m[4]):
        fully_shard(l, mesh=mesh)
    fully_shard(m, mesh=mesh)
    o = torch.optim.Adam(m.parameters(), lr=0.01)

    def run():
        for _ in range(3):
            o.zero_grad()
            m(torch.randn(5, 8)).pow(2).mean().backward()
            o.step()

    return m, run


@prog
def fsdp1():
    from torch.distributed.fsdp import FullyShardedDataParallel as FS

    m = nn.Sequential(
        FS(nn.Linear(8, 8), device_id=torch.device("cpu"), use_orig_params=True),
        nn.ReLU(True),
        FS(nn.Linear(8, 2), device_id=torch.device("cpu"), use_orig_params=True),
    )
    m = FS(m, device_id=torch.device("cpu"), use_orig_params=True)
    o = torch.optim.SGD(m.parameters(), lr=0.01)

    def run():
        for _ in range(3):
            o.zero_grad()
            m(torch.randn(5, 8)).pow(2).mean().backward()
            o.step()

    return m, run


class CkRes(nn.Module):
    def __init__(s, re):
        super().__init__()
        s.r = Res()
        s.re = re

    def forward(s, x):
        x = s.r.stem(x)
        for b in s.r.l:
            x = checkpoint(b, x, use_reentrant=s.re)
        return s.r.fc(x.mean((2, 3)))


def ckbn(re):
    m = CkRes(re)
    o = torch.optim.Adam(m.parameters(), fused=True)

    def run():
        for _ in range(2):
            o.zero_grad()
            (m(torch.randn(4, 3, 16, 16)).mean() - m(torch.randn(4, 3, 16, 16)).mean()).backward()
            o.step()

    return m, run


@prog
def checkpoint_bn_two_forwards():
    return ckbn(False)


@prog
def checkpoint_reentrant_bn_two_forwards():
    return ckbn(True)


@prog
def checkpoint_copyslices_fanout():
    m = nn.Sequential(nn.Linear(4, 8), nn.ReLU(True), nn.Linear(8, 4))
    o = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, foreach=True)

    def run():
        for re in (True, False, True):
            x = m(torch.randn(5, 4))
            x[:, :2].mul_(2)
            y = checkpoint(m, x, use_reentrant=re)
            z = torch.zeros(5, 4)
            z[:, 1:] = (x + y)[:, 1:]
            o.zero_grad()
            (z.pow(2).mean() + x.sum() * 0.1).backward()
            o.step()

    return m, run


@prog
def first_conv_weight_stepped_early_fused():
    m = nn.Conv2d(2, 3, 3)
    o = torch.optim.SGD(m.parameters(), lr=0.1, fused=True)
    x = torch.randn(2, 2, 6, 6)

    def run():
        for _ in range(2):
            y = m(x)
            l1, l2 = y.mean(), y.pow(2).mean()
            o.zero_grad()
            l1.backward(retain_graph=True)
            o.step()
            l1.backward()

    return m, run


@prog
def pooled_input_overwritten_data():
    m = nn.Sequential(nn.Conv2d(2, 3, 3), nn.AvgPool2d(2))
    o = torch.optim.SGD(m.parameters(), lr=0.1)

    def run():
        for _ in range(2):
            h = m[0](torch.randn(2, 2, 6, 6))
            y = F.max_pool2d(h, 2) + m[1](h)
            h.data.zero_()
            o.zero_grad()
            y.mean().backward()
            o.step()

    return m, run


def state(m):
    """Everything that training left in the model, as one vector."""
    out = []
    for t in [*m.parameters(), *m.buffers()]:
        t = getattr(t, "_local_tensor", t)
        out.append(t.detach().clone().flatten().double())
        if getattr(t, "grad", None) is not None and not t.grad.is_sparse:
            out.append(t.grad.detach().clone().flatten().double())
    return torch.cat(out)
