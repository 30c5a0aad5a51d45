"""Ordinary training loops, which must stay quiet (LEGIT), and hazards of other shapes, which must be found (HAZARDS)."""

import copy
import io

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

LEGIT, HAZARDS = {}, {}


def legit(f):
    LEGIT[f.__name__] = f
    return f


def hazard(kind, op):
    def put(f):
        HAZARDS[f.__name__] = (f, kind, op)
        return f

    return put


def mlp(i=4, o=2):
    return nn.Sequential(nn.Linear(i, 8), nn.BatchNorm1d(8), nn.ReLU(True), nn.Linear(8, o))


def train(m, steps=3, i=4, opt=None, after=lambda: None):
    opt = opt or torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        opt.zero_grad()
        m(torch.randn(6, i)).pow(2).mean().backward()
        opt.step()
        after()


# ------------------------------------------------------------------------------------------ quiet
@legit
def zero_grad_in_place():
    m = mlp()
    o = torch.optim.Adam(m.parameters())

    def run(m):
        for _ in range(3):
            m(torch.randn(6, 4)).mean().backward()
            o.step()
            o.zero_grad(set_to_none=False)

    return m, run


@legit
def ema_and_state_dict():
    m = mlp()
    e = copy.deepcopy(m)

    def after():
        with torch.no_grad():
            for a, b in zip(e.parameters(), m.parameters()):
                a.mul_(0.9).add_(b, alpha=0.1)
            for k, v in e.state_dict().items():
                v.copy_(m.state_dict()[k])

    return nn.ModuleList([m, e]), lambda _: train(m, after=after)


@legit
def ema_lerp_detach():
    m = mlp()
    e = copy.deepcopy(m)

    def after():
        for a, b in zip(e.parameters(), m.parameters()):
            a.data.lerp_(b.detach(), 0.1)

    return m, lambda _: train(m, after=after)


@legit
def swa():
    m = mlp()
    a = torch.optim.swa_utils.AveragedModel(m)
    return m, lambda _: (
        train(m, after=lambda: a.update_parameters(m)),
        torch.optim.swa_utils.update_bn([torch.randn(6, 4)] * 2, a),
    )


@legit
def clip_and_decay_by_hand():
    m = mlp()
    o = torch.optim.SGD(m.parameters(), lr=0.1)

    def run(m):
        for _ in range(3):
            o.zero_grad()
            m(torch.randn(6, 4)).pow(2).mean().backward()
            nn.utils.clip_grad_norm_(m.parameters(), 1.0)
            nn.utils.clip_grad_value_(m.parameters(), 0.5)
            for p in m.parameters():
                p.grad.mul_(0.99)
            with torch.no_grad():
                for p in m.parameters():
                    p.mul_(0.999)
                    p -= 0.01 * p.grad
            o.step()
            for p in m.parameters():
                p.data.clamp_(-1, 1)

    return m, run


@legit
def spectral_weight_norm_eval_too():
    m = nn.Sequential(
        nn.utils.parametrizations.spectral_norm(nn.Linear(4, 6)),
        nn.ReLU(True),
        nn.utils.spectral_norm(nn.Linear(6, 4)),
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 2)),
    )

    def run(m):
        train(m)
        m.eval()
        with torch.no_grad():
            m(torch.randn(3, 4))

    return m, run


@legit
def init_then_train():
    m = mlp()

    def run(m):
        for x in m.modules():
            if isinstance(x, nn.Linear):
                nn.init.kaiming_uniform_(x.weight)
                nn.init.zeros_(x.bias)
        with torch.no_grad():
            m[0].weight[0] = 0
            m[3].weight.mul_(2)
        train(m)

    return m, run


@legit
def lazy_modules_no_grad_first():
    m = nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.ReLU(True), nn.LazyLinear(2))

    def run(m):
        with torch.no_grad():
            m(torch.randn(3, 4))
        train(m)

    return m, run


@legit
def actnorm_first_call():
    class Act(nn.Module):
        def __init__(s):
            super().__init__()
            s.b, s.s, s.ready = nn.Parameter(torch.zeros(4)), nn.Parameter(torch.ones(4)), False

        def forward(s, x):
            if not s.ready:
                with torch.no_grad():
                    s.b.copy_(-x.mean(0))
                    s.s.copy_(1 / (x.std(0) + 1e-5))
                s.ready = True
            return (x + s.b) * s.s

    m = nn.Sequential(Act(), nn.Linear(4, 2))
    return m, lambda m: train(m)


@legit
def teacher_student_copy():
    t, s = mlp(), mlp()

    def run(_):
        s.load_state_dict(t.state_dict())
        for a, b in zip(s.parameters(), t.parameters()):
            a.data.copy_(b.data)
        train(s)

    return nn.ModuleList([t, s]), run


@legit
def target_network_soft_update():
    q, t = mlp(), mlp()

    def after():
        for a, b in zip(t.parameters(), q.parameters()):
            a.data.copy_(0.005 * b.data + 0.995 * a.data)
        with torch.no_grad():
            t(torch.randn(3, 4))

    return nn.ModuleList([q, t]), lambda _: train(q, after=after)


@legit
def replay_buffer():
    m = mlp(3, 1)
    store = torch.zeros(16, 3)
    mark = torch.zeros(16)

    def run(m):
        o = torch.optim.Adam(m.parameters())
        for k in range(8):
            x = torch.randn(3)
            store[k] = x
            mark[k] = 1
            i = torch.randint(0, k + 1, (4,))
            o.zero_grad()
            m(store[i]).mean().backward()
            o.step()

    return m, run


@legit
def kv_cache_as_arguments():
    class Att(nn.Module):
        def __init__(s):
            super().__init__()
            s.q = nn.Linear(4, 12)

        def forward(s, x, k, v, pos):
            q, a, b = s.q(x).chunk(3, -1)
            k[:, pos : pos + 1] = a
            v.index_copy_(1, torch.tensor([pos]), b)
            return F.scaled_dot_product_attention(q, k[:, : pos + 1], v[:, : pos + 1])

    class Dec(nn.Module):
        def __init__(s):
            super().__init__()
            s.l = nn.ModuleList([Att(), Att()])

        def forward(s, x, cache, pos):
            for l, (k, v) in zip(s.l, cache):
                x = l(x, k, v, pos)
            return x

    m = Dec()

    def run(m):
        cache = [(torch.zeros(1, 5, 4), torch.zeros(1, 5, 4)) for _ in m.l]
        with torch.no_grad():
            for p in range(5):
                m(torch.randn(1, 1, 4), cache, p)
        return sum(k.sum() for k, _ in cache)

    return m, run


@legit
def moco_in_forward():
    class Moco(nn.Module):
        def __init__(s):
            super().__init__()
            s.q, s.k, s.p = mlp(), mlp(), 0
            s.k.requires_grad_(False)
            s.register_buffer("queue", torch.randn(2, 12))

        def forward(s, x, y):
            q = s.q(x)
            with torch.no_grad():
                for a, b in zip(s.q.parameters(), s.k.parameters()):
                    b.mul_(0.9).add_(a, alpha=0.1)
                k = s.k(y)
            l = q @ s.queue.clone().detach()
            with torch.no_grad():
                s.queue[:, s.p : s.p + 6] = k.T
            s.p = (s.p + 6) % 12
            return l

    m = Moco()

    def run(m):
        o = torch.optim.SGD(m.q.parameters(), lr=0.1)
        for _ in range(3):
            o.zero_grad()
            F.cross_entropy(m(torch.randn(6, 4), torch.randn(6, 4)), torch.zeros(6).long()).backward()
            o.step()
        m.eval()
        with torch.no_grad():
            m(torch.randn(6, 4), torch.randn(6, 4))

    return m, run


@legit
def checkpoint_saving():
    m = mlp()
    sd = {}

    def after():
        sd.update(m.state_dict())
        torch.save(sd, io.BytesIO())
        m.eval()
        m(torch.randn(2, 4))
        m.train()

    return m, lambda _: train(m, after=after)


@legit
def best_weights_deepcopied():
    m = mlp()
    best = {}

    def run(m):
        o = torch.optim.Adam(m.parameters())
        for k in range(4):
            train(m, 1, opt=o)
            if k == 1:
                best.update(copy.deepcopy(m.state_dict()))
        m.load_state_dict(best)
        train(m, 1)

    return m, run


@legit
def label_smoothing_scatter():
    class Smooth(nn.Module):
        def forward(s, l, y):
            t = torch.zeros_like(l).fill_(0.05)
            t.scatter_(1, y[:, None], 0.9)
            m = y == 0
            t[m] = 0
            lp = l.log_softmax(-1)
            lp.masked_fill_(m[:, None], 0.0) if not lp.requires_grad else None
            return -(t * lp).sum(-1).mean()

    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.b, s.c = mlp(4, 3), Smooth()

        def forward(s, x, y):
            return s.c(s.b(x), y)

    m = M()

    def run(m):
        y = torch.randint(0, 3, (6,))
        x = torch.randn(6, 4)
        o = torch.optim.SGD(m.parameters(), lr=0.1)
        for _ in range(3):
            o.zero_grad()
            m(x, y).backward()
            o.step()

    return m, run


@legit
def attention_mask_fresh():
    class A(nn.Module):
        def __init__(s):
            super().__init__()
            s.q, s.o = nn.Linear(8, 24), nn.Linear(8, 8)

        def forward(s, x, pad):
            q, k, v = s.q(x).chunk(3, -1)
            w = q @ k.transpose(1, 2)
            w /= 8**0.5
            mask = torch.zeros(x.shape[1], x.shape[1])
            mask.masked_fill_(torch.ones_like(mask).triu(1).bool(), float("-inf"))
            w += mask
            w.masked_fill_(pad[:, None], -1e9)
            y = s.o(w.softmax(-1) @ v)
            y += x
            return y

    m = nn.ModuleDict({"a": A(), "b": A()})

    def run(m):
        pad = torch.zeros(2, 5).bool()
        x = torch.randn(2, 5, 8)
        for _ in range(2):
            m["b"](m["a"](x, pad), pad).sum().backward()

    return m, run


@legit
def augment_before_model():
    m = mlp()
    data = torch.randn(24, 4)

    def run(m):
        o = torch.optim.SGD(m.parameters(), lr=0.1)
        for k in range(3):
            x = data[k * 6 : k * 6 + 6].clone()
            x.add_(0.1 * torch.randn(6, 4)).clamp_(-2, 2)
            x[:, 0] = 0
            o.zero_grad()
            m(x).mean().backward()
            o.step()

    return m, run


@legit
def normalise_module_in_place_handed_back():
    class Norm(nn.Module):
        def forward(s, x):
            x -= x.mean(0)
            x *= 0.5
            return x

    m = nn.Sequential(mlp(4, 4), Norm(), nn.Linear(4, 2))
    return m, lambda m: train(m)


@legit
def resnet_and_densenet_blocks():
    class B(nn.Module):
        def __init__(s):
            super().__init__()
            s.c, s.n, s.r = nn.Conv2d(3, 3, 3, 1, 1), nn.BatchNorm2d(3), nn.ReLU(True)

        def forward(s, x):
            y = s.n(s.c(x))
            y += x
            return s.r(y)

    class D(nn.Module):
        def __init__(s, i):
            super().__init__()
            s.f = nn.Sequential(nn.BatchNorm2d(i), nn.ReLU(True), nn.Conv2d(i, 3, 3, 1, 1), nn.Dropout(0.1, True))

        def forward(s, x):
            return torch.cat([x, s.f(x)], 1)

    m = nn.Sequential(B(), B(), D(3), D(6), nn.ReLU(True), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(9, 2))

    def run(m):
        for _ in range(2):
            m(torch.randn(2, 3, 6, 6)).sum().backward()

    return m, run


@legit
def preactivation_shared_by_both_branches():
    class P(nn.Module):
        def __init__(s):
            super().__init__()
            s.n, s.r, s.c, s.d = nn.BatchNorm2d(3), nn.ReLU(True), nn.Conv2d(3, 3, 3, 1, 1), nn.Conv2d(3, 3, 1)

        def forward(s, x):
            h = s.r(s.n(x))
            return s.c(h) + s.d(h)

    m = nn.Sequential(P(), P())
    return m, lambda m: m(torch.randn(2, 3, 6, 6)).sum().backward()


@legit
def accumulator_argument():
    class Add(nn.Module):
        def __init__(s):
            super().__init__()
            s.l = nn.Linear(4, 4)

        def forward(s, x, total):
            y = s.l(x)
            total += y
            return y

    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.a, s.b = Add(), Add()

        def forward(s, x):
            t = torch.zeros(6, 4)
            x = s.a(x, t)
            x = s.b(x, t)
            return t + x

    return M(), lambda m: train(m)


@legit
def out_buffer_argument():
    class Put(nn.Module):
        def forward(s, x, out):
            torch.mul(x, 2, out=out)

    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.p = Put()

        def forward(s, x):
            b = torch.empty(6, 4)
            s.p(x, b)
            return b.sum()

    def run(m):
        with torch.no_grad():
            m(torch.randn(6, 4))
            m(torch.randn(6, 4))

    return M(), run


@legit
def temporary_argument_of_the_model():
    class M(nn.Module):
        def forward(s, x):
            x.mul_(2)
            return x.sum(0).sum()

    def run(m):
        d = torch.randn(6, 4)
        for _ in range(3):
            m(d.clone())
        return d.sum()

    return M(), run


@legit
def function_declares_dirty():
    class G(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            x.mul_(2.0)
            ctx.mark_dirty(x)
            return x

        @staticmethod
        def backward(ctx, g):
            return g * 2

    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.l = nn.Linear(4, 2)

        def forward(s, x):
            h = s.l(x)
            y = G.apply(h)
            return y + h

    return M(), lambda m: train(m)


@legit
def checkpointed_in_place():
    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.a, s.b = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU(True), nn.Linear(4, 2))

        def forward(s, x):
            return checkpoint(s.b, checkpoint(s.a, x, use_reentrant=False), use_reentrant=False)

    return M(), lambda m: train(m)


@legit
def gan_fake_batch_used_twice():
    m = nn.ModuleDict(dict(g=mlp(4, 6), d=nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2, True), nn.Linear(8, 1))))

    def run(m):
        f = m["g"](torch.randn(6, 4))
        m["d"](f.detach()).mean().backward()
        m["d"](f).mean().backward()

    return m, run


@legit
def max_norm_embedding_no_grad():
    m = nn.Embedding(9, 4, max_norm=0.1)

    def run(m):
        with torch.no_grad():
            m(torch.arange(9))

    return m, run


@legit
def weights_as_functional_dict():
    m = mlp()

    def run(m):
        o = torch.optim.SGD(m.parameters(), lr=0.1)
        for _ in range(3):
            w = {k: v.detach() for k, v in m.named_parameters()}
            torch.func.functional_call(m, w, (torch.randn(6, 4),))
            train(m, 1, opt=o)

    return m, run


@legit
def overlapping_shift_disjoint():
    class M(nn.Module):
        def forward(s, x):
            y = x * 1
            y[:, 0::2] += y[:, 1::2]
            y[:, :2].copy_(y[:, 2:])
            y.mul_(y)
            torch.exp(y, out=y) if not y.requires_grad else None
            return y

    return M(), lambda m: m(torch.randn(3, 4))


@legit
def rnn_hidden_state_carried():
    m = nn.GRUCell(4, 4)
    h = torch.zeros(2, 4)

    def run(m):
        with torch.no_grad():
            for _ in range(3):
                h.copy_(m(torch.randn(2, 4), h))
        return h.sum()

    return m, run


@legit
def in_place_module_and_its_old_name_without_harm():
    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.l, s.r, s.d, s.c, s.e = (
                nn.Linear(4, 4),
                nn.ReLU(True),
                nn.Dropout(0.1, True),
                nn.Linear(4, 4),
                nn.Linear(4, 4),
            )

        def forward(s, x):
            x = s.l(x)
            s.r(x)  # the statement says it: write here
            y = s.r(x)
            n = x.shape[0]
            z = s.c(y) * n + s.e(y)
            y = s.d(z) if n > 100 else z
            return s.c(s.d(y) if s.training else y)

    def run(m):
        with torch.no_grad():
            m(torch.randn(3, 4))

    return M(), run


@legit
def detached_loss_history():
    m, seen = mlp(), []

    def run(m):
        o = torch.optim.Adam(m.parameters())
        for _ in range(3):
            o.zero_grad()
            l = m(torch.randn(6, 4)).pow(2).mean()
            l.backward()
            o.step()
            seen.append(l.detach())
            l2 = l.detach().clone()
            l2 *= 2
            l.item()
        return torch.stack(seen).mean()

    return m, run


@legit
def truncated_state_detached():
    m = nn.GRUCell(4, 4)

    def run(m):
        h = torch.zeros(2, 4)
        for _ in range(3):
            h = m(torch.randn(2, 4), h)
            h.sum().backward()
            h = h.detach()
            h.mul_(0.9)
            h.requires_grad_()

    return m, run


# ------------------------------------------------------------------------------------------ must be found
@hazard("input-overwritten", "aten.mul_.Tensor")
def keyword_argument_in_a_dict():
    class A(nn.Module):
        def forward(s, x, extra=None):
            extra["scale"].mul_(2)
            return x * extra["scale"]

    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.a = A()

        def forward(s, x):
            e = {"scale": x * 1}
            return s.a(x, extra=e) + e["scale"]

    return M(), lambda m: m(torch.ones(3))


@hazard("input-overwritten", "aten.relu_.default")
def preact_skip_in_sequential():
    m = nn.Sequential(nn.Conv2d(1, 3, 3, 1, 1), nn.ReLU(True), nn.Conv2d(3, 3, 1))

    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.c, s.p = nn.Conv2d(1, 3, 1), nn.Sequential(nn.ReLU(True), nn.Conv2d(3, 3, 1))

        def forward(s, x):
            x = s.c(x)
            return torch.cat([s.p(x), x], 1)

    return M(), lambda m: m(torch.randn(1, 1, 4, 4)).sum().backward()


@hazard("input-overwritten", "aten.clamp_.default")
def through_a_view_of_the_argument():
    class A(nn.Module):
        def forward(s, x):
            x[0].clamp_(0)
            return x.sum()

    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.a = A()

        def forward(s, x):
            h = x * 1
            return s.a(h) + h[0].sum()

    return M(), lambda m: m(torch.randn(3, 4))


@hazard("input-overwritten", "aten.masked_fill_.Scalar")
def loss_eats_logits_logged_later():
    class L(nn.Module):
        def forward(s, l, m):
            l.masked_fill_(m, -1e9)
            return l.logsumexp(-1).mean()

    c = L()
    m = mlp(4, 5)

    def run(m):
        with torch.no_grad():
            l = m(torch.randn(6, 4))
            c(l, torch.rand(6, 5) > 0.5)
            return l.argmax(-1)

    return m, run


@hazard("input-overwritten", "aten.add_.Tensor")
def positions_of_ones():
    class D(nn.Module):
        def forward(s, p):
            p += 1
            return p * 2

    return D(), lambda m: (lambda p: (m(p), m(p)))(torch.zeros(3))


@hazard("input-overwritten", "aten.zero_.default")
def features_list_overwritten():
    class N(nn.Module):
        def forward(s, feats):
            feats[-1].zero_()
            return feats[0] * 2

    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.l, s.n = nn.Linear(4, 4), N()

        def forward(s, x):
            f = [x * 1, x * 2]
            y = s.n(f)
            return y + f[1]

    return M(), lambda m: m(torch.randn(3, 4))


@hazard("alias-overwritten", "aten._foreach_add_.List")
def best_by_detach_and_loaded_back():
    m = mlp()

    def run(m):
        o = torch.optim.SGD(m.parameters(), lr=0.1, foreach=True)
        best = {k: v.detach() for k, v in m.named_parameters()}
        train(m, opt=o)
        with torch.no_grad():
            for k, v in m.named_parameters():
                v.copy_(best[k])

    return m, run


@hazard("alias-overwritten", "aten.mul_.Tensor")
def detached_history_of_a_state():
    m = nn.Linear(4, 4)

    def run(m):
        h, seen = torch.zeros(2, 4), []
        with torch.no_grad():
            for _ in range(3):
                h += m(h)
                seen.append(h.detach())
                h *= 0.5
        return torch.stack(seen).sum()

    return m, run


@hazard("alias-overwritten", "aten.mul_.Tensor")
def two_detaches_of_one_loss():
    m, seen = mlp(), []

    def run(m):
        l = m(torch.randn(6, 4)).pow(2).mean()
        seen.append(l.detach())
        shown = l.detach()
        shown *= 100
        return torch.stack(seen).mean()

    return m, run


@hazard("parameter-write", "aten.mul_.Tensor")
def embedding_row_scaled_in_eval():
    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.p = nn.Parameter(torch.ones(4, 3))

        def forward(s, x):
            p = s.p[None]
            p *= 2
            return x + p

    def run(m):
        with torch.no_grad():
            m(torch.randn(2, 4, 3))

    return M(), run


@hazard("overlapping-write", "aten.sub_.Tensor")
def minus_its_own_last_column():
    class M(nn.Module):
        def forward(s, x):
            y = x * 1
            y -= y[:, -1:]
            return y

    return M(), lambda m: m(torch.randn(4, 3))


@hazard("blocked-write", "aten.copy_.default")
def shift_by_one_is_refused():
    class M(nn.Module):
        def forward(s, x):
            y = x * 1
            y[1:] = y[:-1]
            return y

    return M(), lambda m: m(torch.randn(4, 3))


@hazard("overlapping-write", "aten.mm.out")
def matmul_into_itself():
    class M(nn.Module):
        def forward(s, x):
            y = x * 1
            torch.mm(y, x, out=y)
            return y

    return M(), lambda m: m(torch.randn(3, 3))


@hazard("blocked-write", "aten.index_add_.default")
def index_add_of_itself():
    class M(nn.Module):
        def forward(s, x):
            y = x * 1
            return y.index_add_(0, torch.tensor([1, 2, 0]), y)

    return M(), lambda m: m(torch.randn(3, 3))


@hazard("input-overwritten", "aten.add_.Tensor")
def function_without_mark_dirty():
    class G(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            x.add_(1.0)
            return x.sum()

        @staticmethod
        def backward(ctx, g):
            return g

    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.l = nn.Linear(4, 2)

        def forward(s, x):
            h = s.l(x)
            y = G.apply(h)
            return y + h.mean()

    return M(), lambda m: m(torch.randn(3, 4))


@hazard("input-overwritten", "aten.index_put_.default")
def store_into_a_computed_argument():
    class A(nn.Module):
        def forward(s, x):
            x[torch.tensor([0])] = torch.zeros(1, 4)
            return x.sum()

    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.a = A()

        def forward(s, x):
            h = x * 1
            return s.a(h) + h.mean()

    return M(), lambda m: m(torch.randn(3, 4))


@hazard("input-overwritten", "aten.relu_.default")
def direct_relu_then_skip():
    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.r, s.c = nn.ReLU(True), nn.Conv2d(3, 3, 1)

        def forward(s, x):
            y = s.c(s.r(x))
            return y + x

    m = nn.Sequential(nn.Conv2d(1, 3, 1), M())
    return m, lambda m: m(torch.randn(1, 1, 4, 4)).sum()


@hazard("input-overwritten", "aten.relu_.default")
def direct_relu_then_skip_in_one_line():
    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.r, s.c = nn.ReLU(True), nn.Conv2d(3, 3, 1)

        def forward(s, x):
            return s.c(s.r(x)) + x

    m = nn.Sequential(nn.Conv2d(1, 3, 1), M())
    return m, lambda m: m(torch.randn(1, 1, 4, 4)).sum()


@hazard("input-overwritten", "aten.relu_.default")
def skip_through_a_second_name():
    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.r, s.c = nn.ReLU(True), nn.Conv2d(3, 3, 1)

        def forward(s, x):
            skip = x
            out = s.r(x)
            out = s.c(out)
            out += skip
            return out

    m = nn.Sequential(nn.Conv2d(1, 3, 1), M())
    return m, lambda m: m(torch.randn(1, 1, 4, 4)).sum()


@hazard("input-overwritten", "aten.relu_.default")
def functional_relu_then_skip():
    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.c = nn.Conv2d(3, 3, 1)

        def forward(s, x):
            y = F.relu(x, inplace=True)
            return s.c(y) + x

    m = nn.Sequential(nn.Conv2d(1, 3, 1), M())
    return m, lambda m: m(torch.randn(1, 1, 4, 4)).sum()
