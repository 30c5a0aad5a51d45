"""
Random programs, one operator per line, with random writes; the truth about them comes from torch alone.

Loud: plain torch raises, and anomaly mode names the line whose node failed. Silent: the gradients differ from those with
all savings cloned (a pack hook); the victims are the lines whose cloning changes them.
"""

import contextlib
import re

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

MODIFIED = "modified by an inplace operation"


class SaveIn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g


class SaveOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        y.exp_()
        y.mul_(0.5)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return y * g


class Scratch(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        s = x.clone()
        s.data.mul_(0.7)
        ctx.save_for_backward(s)
        return s * 1.0

    @staticmethod
    def backward(ctx, g):
        (s,) = ctx.saved_tensors
        return s * g * 0.7


class NoUse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2


UN = [
    "torch.sigmoid({a})",
    "torch.tanh({a})",
    "torch.exp({a}*0.3)",
    "torch.relu({a})",
    "F.gelu({a})",
    "F.silu({a})",
    "F.softmax({a},-1)",
    "F.log_softmax({a},-1)",
    "{a}**2",
    "{a}.abs().sqrt()",
    "{a}.cumsum(0)",
    "F.layer_norm({a},(3,))",
    "{a}.clamp(-1,1)",
    "F.leaky_relu({a})",
    "F.elu({a})",
    "{a}*0.5",
    "{a}+1",
    "{a}.clone()",
    "{a}.t().contiguous().t()",
    "SaveIn.apply({a})",
    "SaveOut.apply({a})",
    "Scratch.apply({a})",
    "NoUse.apply({a})",
    "{a}.index_select(0,IDX)",
    "{a}.gather(0,GI)",
    "{a}[IDX]",
    "F.max_pool1d({a}[None],1)[0]",
    "F.avg_pool1d({a}[None],1)[0]",
    "{a}.std(0,keepdim=True)+{a}",
    "{a}.norm(dim=1,keepdim=True)*{a}",
    "F.normalize({a},dim=1)",
    "torch.logsumexp({a},1,keepdim=True)+{a}",
    "{a}.masked_fill(MASK,0.1)",
    "torch.where(MASK,{a},{a}*2)",
    "checkpoint(lambda z: torch.sigmoid(z)*z,{a},use_reentrant=False)",
    "checkpoint(lambda z: torch.tanh(z)*z,{a},use_reentrant=True)",
    "F.scaled_dot_product_attention({a}[None,None],{a}[None,None],{a}[None,None])[0,0]",
    "F.batch_norm({a},RM,RV,training=True)",
    "F.batch_norm({a},RM,RV,training=False)",
    "{a}@W",
    "F.linear({a},W)",
    "F.linear({a},W,B)",
    "torch.addmm(B,{a},W)",
    "{a}*P",
    "F.conv1d({a}[None],CW)[0]",
    "{a}[0]*{a}",
    "{a}[:,1:2]*{a}",
    "F.prelu({a},PR)",
    "F.hardtanh({a})",
    "{a}.view(-1).view(4,3)*1.0",
    "F.softplus({a})",
    "F.dropout({a},0.5)",
]
BI = [
    "{a}*{b}",
    "{a}+{b}",
    "{a}-{b}",
    "{a}/({b}.abs()+1)",
    "torch.maximum({a},{b})",
    "torch.stack([{a},{b}]).mean(0)",
    "torch.cat([{a},{b}])[2:6]",
    "torch.einsum('ij,kj->ik',{a},{b})@{a}",
    "torch.lerp({a},{b},0.3)",
    "torch.addcmul({a},{a},{b})",
    "F.mse_loss({a},{b},reduction='none')",
    "torch.hypot({a},{b})",
    "torch.atan2({a},{b}+3)",
    "F.smooth_l1_loss({a},{b},reduction='none')",
    "F.glu(torch.cat([{a},{b}],1),1)",
]
LOUD = [
    "{a}.mul_(1.5)",
    "{a}.add_(0.5)",
    "{a}[1].mul_(1.5)",
    "{a}[:,1]=0.3",
    "{a}.sigmoid_()",
    "{a}.relu_()",
    "{a}[2].tanh_()",
    "{a}.mul_({b})",
    "{a}[0].mul_({b}[0])",
    "{a}.detach().mul_(1.5)",
    "{a}.detach()[1].zero_()",
    "{a}.unsqueeze_(0).squeeze_(0)",
    "{a}.clamp_(-.5,.5)",
]
NOG = [
    "torch.no_grad: {a}.mul_(1.5)",
    "torch.no_grad: {a}[:,0].fill_(0.2)",
    "torch.no_grad: torch._foreach_mul_([{a}],1.5)",
    "torch.no_grad: torch.mul({b},2.0,out={a})",
    "torch.no_grad: {a}.copy_({b})",
    "torch.no_grad: W.add_(0.1)",
    "torch.no_grad: P[1].mul_(0.5)",
    "torch.no_grad: B.sub_(0.1)",
    "torch.no_grad: CW.mul_(1.1)",
    "torch.no_grad: RM.add_(0.1)",
]
SIL = [
    "{a}.data.mul_(1.5)",
    "{a}.data[1].fill_(0.3)",
    "{a}.data[:,2].mul_(2.0)",
    "{a}.data.copy_({b}.detach())",
    "W.data.mul_(1.2)",
    "P.data[0].add_(1.0)",
    "torch.no_grad: fused([W,P])",
    "torch.no_grad: fused([CW])",
    "preserve: {a}.mul_(1.3)",
    "RM.data.add_(0.2)",
    "torch.no_grad: fused([B])",
    "PR.data.mul_(1.1)",
    "MASK.data.logical_not_()",
]


def fused(ps):
    torch._fused_sgd_(
        ps,
        [torch.ones_like(p) for p in ps],
        [],
        weight_decay=0.0,
        momentum=0.0,
        lr=0.1,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=False,
    )


def gen(rng, mode):
    n = rng.randint(3, 8)
    names = ["X", "X"]
    st = []
    k = 0
    nwrites = rng.choice([0, 1, 1, 1, 2, 3]) if mode != "clean" else 0
    wpos = sorted(rng.randint(1, n) for _ in range(nwrites))

    def write():
        pool = {"loud": LOUD + NOG, "silent": SIL, "mixed": LOUD + NOG + SIL}[mode]
        w = rng.choice(pool)
        w = w.format(a=rng.choice([x for x in names]), b=rng.choice(names))
        if w.startswith("torch.no_grad: "):
            w = "with torch.no_grad(): " + w[15:]
        if w.startswith("preserve: "):
            body = w[10:]
            w = "with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(%s): %s" % (
                body.split(".")[0].split("[")[0],
                body,
            )
        st.append(w)

    for i in range(n):
        for _ in range(wpos.count(i)):
            write()
        k += 1
        e = rng.choice(UN if rng.random() < 0.65 else BI).format(a=rng.choice(names[-4:]), b=rng.choice(names[-4:]))
        st.append(f"t{k} = {e}")
        names.append(f"t{k}")
    for _ in range(wpos.count(n)):
        write()
    outs = sorted(set([*rng.sample(names[2:], rng.randint(1, min(3, len(names) - 2))), names[-1]]))
    st.append("loss = " + " + ".join(f"({o}*C).sum()" for o in outs))
    kind = rng.random()
    if kind < 0.7:
        st.append("loss.backward()")
    elif kind < 0.85:
        st.append("loss.backward(retain_graph=True)")
        if mode != "clean" and rng.random() < 0.7:
            write()
        st.append("loss.backward()")
    else:
        st.append("gs = torch.autograd.grad(loss,[X,W,P],create_graph=True,allow_unused=True)")
        if mode != "clean" and rng.random() < 0.7:
            write()
        st.append("sum((g*g).sum() for g in gs if g is not None and g.requires_grad).backward()")
    return st


def env(seed):
    torch.manual_seed(seed)
    e = dict(
        torch=torch,
        F=F,
        checkpoint=checkpoint,
        SaveIn=SaveIn,
        SaveOut=SaveOut,
        Scratch=Scratch,
        NoUse=NoUse,
        fused=fused,
    )
    e["X"] = (torch.randn(4, 3)).requires_grad_() * 1.0
    e["X0"] = None
    x = torch.randn(4, 3, requires_grad=True)
    e["X_leaf"] = x
    e["X"] = x * 1.0
    for n, s in dict(W=(3, 3), P=(4, 3), B=(3,), CW=(4, 4, 1), PR=(1,)).items():
        e[n] = torch.nn.Parameter(torch.randn(*s) * 0.5)
    e["C"] = torch.randn(4, 3)
    e["IDX"] = torch.tensor([1, 0, 3, 2])
    e["GI"] = torch.tensor([[0, 1, 2], [1, 2, 3], [3, 3, 0], [2, 0, 1]])
    e["MASK"] = torch.rand(4, 3) > 0.5
    e["RM"] = torch.zeros(3)
    e["RV"] = torch.ones(3)
    return e


def clonehooks():
    return torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t)


def nanhooks():
    def spoil(t):
        t = t.detach().clone()
        if t.is_floating_point():
            t.add_(torch.rand_like(t))
        elif t.dtype == torch.bool:
            t.logical_not_()
        return t

    return torch.autograd.graph.saved_tensors_hooks(spoil, lambda t: t)


def run(st, seed, fname, mon=None, clone=None, anomaly=False, nan=False, reraise=False):
    e = env(seed)
    err = None
    run.at = None
    codes = [compile("\n" * i + s, fname, "exec") for i, s in enumerate(st)]

    try:
        with (
            mon if mon is not None else contextlib.nullcontext(),
            torch.autograd.set_detect_anomaly(True, check_nan=False) if anomaly else contextlib.nullcontext(),
        ):
            for i, c in enumerate(codes):
                run.at = i
                with (
                    nanhooks()
                    if nan and clone == i
                    else clonehooks()
                    if clone is not None and (clone == "all" or clone == i)
                    else contextlib.nullcontext()
                ):
                    exec(c, e)
    except RuntimeError as x:
        if reraise:
            raise
        err = str(x)
    except Exception as x:
        err = "OTHER " + repr(x)
    g = {n: (e[n].grad.clone() if e[n].grad is not None else None) for n in ("X_leaf", "W", "P", "B", "CW", "PR")}
    return err, g, e


def same(a, b):
    return all(
        (a[k] is None) == (b[k] is None) and (a[k] is None or torch.equal(a[k].nan_to_num(7.0), b[k].nan_to_num(7.0)))
        for k in a
    )


def line(source):
    m = re.search(r":(\d+) in", source or "")
    return int(m[1]) - 1 if m else None
