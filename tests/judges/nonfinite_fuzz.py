"""
Random programs that go wrong in random places, and the truth about each: from replaying every operator, never from a trace.

Truth per event (`Truth`): the operator runs again on copies of its inputs in which every non-finite element is replaced by
a finite one (three choices). Elements that stay non-finite for all three were made here: origin. Elements that are NaN
when only NaN is replaced (Inf kept): turned. Elements that need the operator's own non-finite number: deliberate. What
would be non-finite anyway, by the non-finite inputs alone, is `hidden`: nobody can tell, and it is not scored.

Truth of the verdict (`Patch`): the whole program again, with what chosen events made themselves made finite. A root matters
if it alone, with every other root made finite, still spoils a loss, gradient, parameter, buffer or optimizer state. The
first root that matters is the first cause.

    python tests/judges/nonfinite_fuzz.py FIRST LAST [show]
"""

import collections
import math
import random
import sys
import tempfile
import traceback
import warnings

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from dispatchmon import DispatchMonitor, open_trace
from dispatchmon.analysis.nonfinite.find import search
from dispatchmon.analysis.nonfinite.findings import ALARM, DELIBERATE, EXTERNAL, ORIGIN, TURNED

INF, NAN = float("inf"), float("nan")


def floats(x):
    return [t for t in tree_leaves(x) if isinstance(t, torch.Tensor) and t.is_floating_point()]


def copies(x):
    def one(t):
        if not isinstance(t, torch.Tensor):
            return t
        t = t.detach()
        if 0 in t.stride():
            return t.clone(memory_format=torch.contiguous_format)
        return torch.empty(0, dtype=t.dtype).set_(t.untyped_storage().clone(), t.storage_offset(), t.shape, t.stride())

    return tree_map(one, x)


def writes(func, args, kwargs):
    return [
        t
        for i, a in enumerate(func._schema.arguments)
        if a.alias_info and a.alias_info.is_write
        for t in floats(args[i] if i < len(args) else kwargs.get(a.name))
    ]


def replayed(func, before, rng, value, nan, inf, scalars, finite=False):
    args, kwargs = copies(before)
    for t in floats((args, kwargs)):
        t.copy_(
            torch.where(
                (t.isnan() & nan) | (t.isinf() & inf) | (t.isfinite() & finite), torch.tensor(value, dtype=t.dtype), t
            )
        )
    if scalars:
        fix = lambda v: value if isinstance(v, float) and not math.isfinite(v) else v
        args, kwargs = tree_map(fix, args), tree_map(fix, kwargs)
    torch.set_rng_state(rng)
    out = func(*args, **kwargs)
    return floats(out) + writes(func, args, kwargs)


def by_inputs(func, before, rng, test, inf=False):
    """What would be non-finite anyway, by the non-finite inputs alone: every finite element is made harmless."""
    all_finite = all(bool(t.isfinite().all()) for t in floats(before))
    runs = [replayed(func, before, rng, v, False, inf, True, True) for v in (0.9, 0.37, 0.6)]
    return [torch.stack([test(t) for t in of_each]).any(0) & (not all_finite) for of_each in zip(*runs, strict=True)]


class Truth(TorchDispatchMode):
    """Says of every event what it made itself."""

    def __init__(self):
        super().__init__()
        self.events, self.labels, self.hidden = 0, {}, {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func.namespace == "profiler":
            return func(*args, **kwargs)
        event = self.events
        self.events += 1
        with _disable_current_modes():
            before, rng = copies((args, kwargs)), torch.get_rng_state()
        out = func(*args, **kwargs)
        with _disable_current_modes():
            result = floats(out) + writes(func, args, kwargs)
            view = any(a.alias_info and not a.alias_info.is_write for a in func._schema.arguments)
            if not view and any(not bool(t.isfinite().all()) for t in result):
                after, self.event = torch.get_rng_state(), event
                self.labels[event] = self.classify(func, before, rng, [t.detach().clone() for t in result])
                torch.set_rng_state(after)
        return out

    def again(self, *a, **k):
        return replayed(*a, **k)

    def classify(self, func, before, rng, result):
        name = str(func)
        if "empty" in name:
            return {"uninitialised"}
        choices = [(v, self.again(func, before, rng, v, True, True, True)) for v in (1.0, 0.37, 1.7)]
        labels = set()
        made = [torch.stack([~o[1][k].isfinite() for o in choices]).all(0) for k in range(len(result))]
        if any(bool((m & ~r.isfinite()).any()) for m, r in zip(made, result, strict=True)):
            labels.add("origin")
        keep_scalar = [self.again(func, before, rng, v, True, True, False) for v in (1.0, 0.37, 1.7)]
        own = [
            torch.stack([~o[k].isfinite() for o in keep_scalar]).all(0) & ~made[k] & ~result[k].isfinite()
            for k in range(len(result))
        ]
        holds_nan = any(isinstance(v, float) and math.isnan(v) for v in tree_leaves(before))
        if any(bool((m & (r.isinf() | holds_nan)).any()) for m, r in zip(own, result, strict=True)):
            labels.add("deliberate")
        if any(bool((m & r.isnan() & (not holds_nan)).any()) for m, r in zip(own, result, strict=True)):
            labels.add("turned")
        keep_inf = [self.again(func, before, rng, v, True, False, False) for v in (1.0, 0.37, 1.7)]
        if any(
            bool((torch.stack([o[k].isnan() for o in keep_inf]).all(0) & ~made[k] & ~own[k] & r.isnan()).any())
            for k, r in enumerate(result)
        ):
            labels.add("turned")
        anyway = by_inputs(func, before, rng, lambda o: ~o.isfinite())
        turned = [
            torch.stack([o[k].isnan() for o in keep_inf]).all(0) & ~made[k] & ~own[k] & r.isnan()
            for k, r in enumerate(result)
        ]
        by_nan = by_inputs(func, before, rng, lambda o: o.isnan(), inf=True)
        self.hidden[self.event] = {
            n
            for n, m, a in (("origin", made, anyway), ("deliberate", own, anyway), ("turned", turned, by_nan))
            if n in labels
            and not any(bool((x & ~y & ~r.isfinite()).any()) for x, y, r in zip(m, a, result, strict=True))
        }
        return labels or {"propagated"}


class Patch(TorchDispatchMode):
    """
    Makes finite what chosen events make themselves: elements that stay non-finite when the non-finite inputs are finite, and
    that no non-finite input would have spoiled anyway. What such an event only passes on stays.
    """

    def __init__(self, events, value=1.0):
        super().__init__()
        self.patch, self.value, self.count = events, value, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "profiler":
            return func(*args, **(kwargs or {}))
        kwargs, event = kwargs or {}, self.count
        self.count += 1
        if event not in self.patch:
            return func(*args, **kwargs)
        with _disable_current_modes():
            before, rng = copies((args, kwargs)), torch.get_rng_state()
        out = func(*args, **kwargs)
        with _disable_current_modes():
            result, after = floats(out) + writes(func, args, kwargs), torch.get_rng_state()
            runs = [replayed(func, before, rng, v, True, True, False) for v in (1.0, 0.37, 1.7)]
            anyway = by_inputs(func, before, rng, lambda o: ~o.isfinite())
            for k, t in enumerate(result):
                born = ~t.isfinite() & torch.stack([~o[k].isfinite() for o in runs]).all(0) & ~anyway[k]
                if bool(born.any()):
                    t.copy_(torch.where(born, torch.full((), self.value, dtype=t.dtype), t))
            torch.set_rng_state(after)
        return out


# ================================================================================================ random programs
class Net(nn.Module):
    """A random network."""

    def __init__(self, seed):
        super().__init__()
        self.seed, g = seed, torch.Generator().manual_seed(seed)
        self.w = nn.Parameter(torch.randn(6, 6, generator=g))
        self.b = nn.Parameter(torch.zeros(6))
        self.s = nn.Parameter(torch.randn(4, 6, generator=g))
        self.register_buffer("run", torch.zeros(1, 6))

    def forward(self, x):
        r = random.Random(self.seed)
        pool = [x, self.s * 1.0, x @ self.w + self.b]
        mask = x > 0.3
        hot = self.seed % 3  # how eager the program is to go wrong
        for _ in range(r.randint(4, 12)):
            a, b = r.choice(pool[-4:]), r.choice(pool)
            k = r.choice(
                [
                    "log",
                    "sqrt",
                    "div",
                    "exp",
                    "softmax",
                    "maskinf",
                    "where",
                    "norm",
                    "half",
                    "cat",
                    "index",
                    "inplace",
                    "nannum",
                    "add",
                    "mul",
                    "matmul",
                    "relu",
                    "mean",
                    "sub",
                    "setitem",
                    "logsm",
                    "square",
                    "clamp",
                    "max",
                    "recip",
                    "acos",
                    "cumsum",
                    "std",
                    "var",
                    "layernorm",
                    "pow",
                    "tanh",
                    "sigmoid",
                    "sum",
                    "bigger",
                    "rsqrt",
                    "lse",
                    "copyview",
                    "running",
                    "deadrow",
                    "min",
                    "bce",
                ]
            )
            if k == "log":
                y = torch.log(a.relu() if r.randint(0, 2) else a.abs() + (0.1 if hot else 0))
            elif k == "sqrt":
                y = torch.sqrt(a if r.randint(0, 2) == 0 else a.relu())
            elif k == "div":
                y = a / (b if hot else b.relu())
            elif k == "exp":
                y = torch.exp(a * r.choice([1.0, 30.0]))
            elif k == "softmax":
                y = torch.softmax(a, -1)
            elif k == "logsm":
                y = torch.log_softmax(a, -1)
            elif k == "maskinf":
                y = a.masked_fill(mask if r.randint(0, 3) else torch.ones_like(mask), -INF)
            elif k == "deadrow":
                m = torch.zeros(4, 6).masked_fill(mask, -INF)
                m[r.randint(0, 3)] = -INF
                y = a + m
            elif k == "where":
                y = torch.where(mask, a, b)
            elif k == "norm":
                y = a / a.norm(dim=-1, keepdim=True)
            elif k == "half":
                y = (a * r.choice([1.0, 1e4])).half().float()
            elif k == "cat":
                y = torch.cat([a[:2], b[2:]])
            elif k == "index":
                y = a[torch.tensor([r.randint(0, 3) for _ in range(4)])]
            elif k == "inplace":
                y = a.clone()
                y[:, :3].mul_(b[:, :3].detach())
                y.add_(1)
            elif k == "setitem":
                y = a.clone()
                y[r.randint(0, 3)] = b[0]
            elif k == "copyview":
                y = torch.zeros(4, 6)
                y[:, ::2] = a[:, ::2]
                y[:, 1::2] = b[:, 1::2]
            elif k == "nannum":
                y = torch.nan_to_num(a, 0.0, 1.0, -1.0)
            elif k == "add":
                y = a + b
            elif k == "sub":
                y = a - b
            elif k == "mul":
                y = a * b
            elif k == "matmul":
                y = a @ self.w
            elif k == "relu":
                y = a.relu()
            elif k == "mean":
                y = a - a.mean(0, keepdim=True)
            elif k == "sum":
                y = a * b.sum(-1, keepdim=True)
            elif k == "square":
                y = a * a
            elif k == "pow":
                y = a ** r.choice([2, 3, 0.5, -1])
            elif k == "clamp":
                y = a.clamp(-3, 3)
            elif k == "max":
                y = torch.maximum(a, b)
            elif k == "min":
                y = torch.minimum(torch.full((4, 6), INF), a)
            elif k == "recip":
                y = 1 / a.relu() if r.randint(0, 1) else a.reciprocal()
            elif k == "acos":
                y = torch.acos(a.clamp(-1, 1) if r.randint(0, 1) else a)
            elif k == "cumsum":
                y = a.cumsum(-1)
            elif k == "std":
                y = a / (a.std(-1, keepdim=True) + 1e-6)
            elif k == "var":
                y = a - a[:1].var(0, keepdim=True, unbiased=bool(r.randint(0, 4)))
            elif k == "layernorm":
                y = F.layer_norm(a, (6,))
            elif k == "tanh":
                y = torch.tanh(a)
            elif k == "sigmoid":
                y = torch.sigmoid(a * r.choice([1, 40]))
            elif k == "bigger":
                y = a * 1e25
            elif k == "rsqrt":
                y = torch.rsqrt(a.relu() + r.choice([0, 1e-5]))
            elif k == "lse":
                y = a - torch.logsumexp(a, -1, keepdim=True)
            elif k == "bce":
                p = torch.sigmoid(a * 20)
                y = -(b.detach() * torch.log(p) + (1 - b.detach()) * torch.log(1 - p))
            elif k == "running":
                with torch.no_grad():
                    self.run.mul_(0.9).add_(a.var(0, keepdim=True) * 0.1)
                y = a - self.run
            pool.append(y)
        keep = r.sample(pool[1:], min(2, len(pool) - 1))
        if r.randint(0, 2) == 0:
            keep = [torch.where(mask, k, torch.zeros_like(k)) for k in keep]
        return [*keep, pool[2]]


def program(seed):
    r = random.Random(seed + 10**6)
    torch.manual_seed(seed)
    net = Net(seed)
    x = torch.randn(4, 6)
    x[1, 2] = 0
    x[3] = 0
    if r.randint(0, 7) == 0:
        x[0, 1] = r.choice([INF, -INF, NAN])
    kind, clip, steps = r.choice(["sgd", "adam", "momentum"]), r.randint(0, 2) == 0, r.randint(1, 2)
    foreach = r.choice([True, False])
    return net, x, kind, clip, steps, foreach


def execute(net, x, kind, clip, steps, foreach):
    make = {
        "sgd": lambda p: torch.optim.SGD(p, 0.01, foreach=foreach),
        "adam": lambda p: torch.optim.Adam(p, 0.01, foreach=foreach),
        "momentum": lambda p: torch.optim.SGD(p, 0.01, momentum=0.9, foreach=foreach),
    }[kind]
    opt = make(list(net.parameters()))
    sinks = {}
    for step in range(steps):
        opt.zero_grad()
        loss = sum(t.pow(2).mean() if net.seed % 2 else t.mean() for t in net(x))
        loss.backward()
        for n, p in net.named_parameters():
            if p.grad is not None:
                sinks[f"{n}.grad{step}"] = p.grad
        if clip:
            nn.utils.clip_grad_norm_(net.parameters(), 1.0, foreach=foreach)
        opt.step()
        sinks[f"loss{step}"] = loss
        with _disable_current_modes():
            for k in list(sinks):
                if isinstance(sinks[k], torch.Tensor):
                    sinks[k] = pattern(sinks[k])
    with _disable_current_modes():
        for i, state in enumerate(opt.state.values()):
            for n, v in state.items():
                if isinstance(v, torch.Tensor):
                    sinks[f"state {i} {n}"] = pattern(v)
        for n, p in list(net.named_parameters()) + list(net.named_buffers()):
            sinks[n] = pattern(p)
    return sinks


def pattern(t):
    t = t.detach()
    return tuple((t.isnan() * 1 + (t == INF) * 2 + (t == -INF) * 3).reshape(-1).tolist())


def finite(sinks):
    return not any(any(v) for v in sinks.values())


def traced(model, run):
    """The search's findings on what `run` did."""
    with tempfile.TemporaryDirectory() as folder:
        with DispatchMonitor(model, f"{folder}/trace.arrow", quiet=True) as monitor:
            result = run()
        assert monitor.error is None, monitor.error
        return result, search(open_trace(f"{folder}/trace.arrow"), 0)


def judge(seed, tally, show=False):
    """Compare the findings on one program with the truth, and count."""
    prog, truth = program(seed), Truth()

    def run():
        with truth:
            return execute(*prog)

    sinks, found = traced(prog[0], run)
    interesting = {ORIGIN, TURNED, DELIBERATE}
    tally["programs"] += 1
    labels = collections.defaultdict(set)
    for f in found.findings:
        if f.kind in interesting:
            labels[f.event].add(f.kind)
    for e in sorted(set(truth.labels) | set(labels)):
        hidden = truth.hidden.get(e, set())
        want, got = (truth.labels.get(e, set()) & interesting) - hidden, labels.get(e, set()) - hidden
        right = want == got
        tally[
            "event", "right" if right else f"want {'+'.join(sorted(want)) or '-'} got {'+'.join(sorted(got)) or '-'}"
        ] += 1
        if show and not right:
            print(seed, e, found.events[e].first.op if e in found.events else None, "want", want, "got", got)
    alarms = [f for f in found.findings if f.verdict == ALARM]
    if finite(sinks):
        wrong = [f for f in alarms if set(f.spread) & SINKS]
        tally["sinks finite", "silent" if not wrong else "FALSE ALARM"] += 1
    else:
        tally["sinks bad", "alarm" if alarms else "MISSED"] += 1
    if not finite(sinks) or any(f.kind in (*interesting, EXTERNAL) for f in found.findings):
        causal(seed, found, truth, tally, show)


SINKS = {"loss", "gradient", "parameter", "state", "buffer"}


def causal(seed, found, truth, tally, show):
    """Which roots matter, and which is the first that does."""

    def patched(events, outside):
        got = None
        for value in (1.0, 0.5, 2.0):
            p = program(seed)
            if outside:
                p[1].copy_(torch.nan_to_num(p[1], value, value, value))
            with Patch(events, value):
                got = execute(*p)
            if finite(got):
                return got
        return got

    every = {e for e, kinds in truth.labels.items() if kinds & {ORIGIN, DELIBERATE}}
    if len(every) > 40 or not finite(patched(every, True)):
        tally["root", "not testable: patching creates new ones"] += 1
        return
    by = collections.defaultdict(list)
    for f in found.findings:
        if f.kind in (ORIGIN, TURNED, DELIBERATE):
            by[f.event].append(f)

    def matters_to_us(f, seen=frozenset()):
        return bool(set(f.spread) & SINKS) or any(
            matters_to_us(found.findings[t], seen | {f.number}) for t in f.became if t not in seen
        )

    first = None
    for e in sorted(every):
        if not (truth.labels[e] & {ORIGIN, DELIBERATE}) - truth.hidden.get(e, set()):
            continue
        matters = not finite(patched(every - {e}, True))
        got = any(matters_to_us(f) for f in by[e])
        tally["root matters", matters, "right" if got == matters else "wrong" if by[e] else "not found"] += 1
        if show and got != matters:
            print(seed, "root", e, "matters", matters, [(f.kind, f.verdict, f.spread) for f in by[e]])
        if matters and first is None:
            first = e
    if first is not None:
        ours = [f.event for f in found.findings if f.kind in (ORIGIN, DELIBERATE) and matters_to_us(f)]
        tally["first", "right" if ours and min(ours) == first else "wrong"] += 1
        if show and (not ours or min(ours) != first):
            print(seed, "first", first, "ours", min(ours, default=None))


def report(tally):
    """Print the counts."""
    for key, value in sorted(tally.items(), key=str):
        print(key if isinstance(key, str) else ", ".join(map(str, key)), value)


def main(first, last, show=False):
    """Judge the programs with these seeds."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    tally = collections.Counter()
    for seed in range(first, last):
        try:
            judge(seed, tally, show)
        except Exception as error:
            tally["judge failed", f"{type(error).__name__}: {str(error)[:80]}"] += 1
            traceback.print_exc()
    return tally


if __name__ == "__main__":
    report(main(int(sys.argv[1]), int(sys.argv[2]), "show" in sys.argv))
