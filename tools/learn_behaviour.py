"""
Learn, from torch's operator database, what each ATen operator does with NaN, Inf and extreme finite values.

    python tools/learn_behaviour.py          (or: make behaviour)

Every call that the database's samples make, forward and backward, is replayed with its inputs changed. The answer is
`dispatchmon/analysis/data/operator_behaviour.json`: the torch version, and per overload

  creates   which of "n" (NaN), "p" (+Inf), "m" (-Inf) can come out when all inputs are finite
  is        "view" (some output aliases an input that is not written), "moves" (values are only moved)
  values    the arguments that were seen with floating values
  args      of these, the ones whose values are read:
    n, p, m   what NaN, +Inf and -Inf become: some of n, p, m and f (finite)
    is        "one" (an element reaches no more elements than broadcasting makes of it), "same" (and just those),
              "ignores" (some elements have no influence), "kept" (it is only left where it was)
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import types
import unittest
import warnings
from pathlib import Path

warnings.simplefilter("ignore")
try:
    import expecttest  # noqa: F401
except ImportError:  # torch's test helpers import it, and use it for nothing that is needed here
    stub = types.ModuleType("expecttest")
    stub.TestCase, stub.assert_expected_inline = unittest.TestCase, None
    sys.modules["expecttest"] = stub

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

TARGET = Path(__file__).resolve().parent.parent / "dispatchmon" / "analysis" / "data" / "operator_behaviour.json"
NAN, INF = float("nan"), float("inf")
MOST_CALLS, MOST_ELEMENTS = 14, 600
BIGGEST = 3.4e38
FILLS = [0.0, 1e-30, BIGGEST, -BIGGEST, 1.0, -1.0, 200.0]
EXTREMES = [0.0, 0.0, 1.0, -1.0, 0.5, 2.0, -3.0, 1e-30, 3e38, -3e38, 60.0, 100.0, -100.0]
ORDINARY = [0.0, 0.0, 1.0, -1.0, 0.5, 2.0]
captured: dict = {}
signatures: set = set()


def is_value(tensor):
    return isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and tensor.layout == torch.strided


def copied(arguments):
    """The same arguments in memory of their own, with the same strides."""

    def one(t):
        if not isinstance(t, torch.Tensor):
            return t
        if 0 in t.stride() and not t.requires_grad:
            return t.detach().clone(memory_format=torch.contiguous_format)
        t = t.detach()
        if t.layout != torch.strided:
            return t.clone()
        return torch.empty(0, dtype=t.dtype).set_(t.untyped_storage().clone(), t.storage_offset(), t.shape, t.stride())

    return tree_map(one, arguments)


class Capture(TorchDispatchMode):
    """Keeps some calls of every operator."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        calls = captured.setdefault(func, [])
        sign = str(
            [(tuple(x.shape), x.dtype) if isinstance(x, torch.Tensor) else repr(x) for x in tree_leaves((args, kwargs))]
        )
        if len(calls) < MOST_CALLS and (func, sign) not in signatures:
            signatures.add((func, sign))
            tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
            ordinary = all(
                type(t) in (torch.Tensor, torch.nn.Parameter)
                and t.layout == torch.strided
                and t.untyped_storage().nbytes() < 8 * MOST_ELEMENTS
                for t in tensors
            )
            if tensors and ordinary:
                calls.append(copied((args, kwargs)))
        return func(*args, **kwargs)


def arguments(func, args, kwargs):
    """(name, its floating tensors, whether it is written) of each argument that has some."""
    for i, argument in enumerate(func._schema.arguments):
        value = args[i] if i < len(args) else kwargs.get(argument.name)
        tensors = [t for t in tree_leaves(value) if is_value(t)]
        if tensors:
            yield argument.name, tensors, bool(argument.alias_info and argument.alias_info.is_write)


def outcome(func, args, kwargs):
    """(floating results and written arguments, flat; other results, flat; shapes of the former)."""
    torch.manual_seed(3)
    out = func(*args, **kwargs)
    written = [t for _, tensors, on in arguments(func, args, kwargs) if on for t in tensors]
    values = [t for t in tree_leaves(out) if is_value(t)] + written
    others = [
        t for t in tree_leaves(out) if isinstance(t, torch.Tensor) and not is_value(t) and t.layout == torch.strided
    ]
    return (
        [t.detach().clone().double().reshape(-1) for t in values],
        [t.detach().clone().reshape(-1) for t in others],
        [t.shape for t in values],
    )


def moved(before, after):
    return ~((before == after) | (before.isnan() & after.isnan()))


def kinds(base, now):
    """What the elements that changed became, and how many changed in the output where most did."""
    found, most = set(), 0
    for a, b in zip(base, now, strict=False):
        if a.shape != b.shape:
            found.add("f")
            continue
        changed = moved(a, b)
        most = max(most, int(changed.sum()))
        for name, mask in (("n", b.isnan()), ("p", b == INF), ("m", b == -INF), ("f", b.isfinite())):
            if bool((changed & mask).any()):
                found.add(name)
    return found, most


def image(shape, at, out_shape):
    """Where broadcasting puts one element; None if it does not broadcast."""
    if len(shape) > len(out_shape) or any(
        a not in (1, b) for a, b in zip(reversed(shape), reversed(out_shape), strict=False)
    ):
        return None
    mask = torch.zeros(shape, dtype=torch.bool)
    mask[at] = True
    return mask.expand(out_shape).reshape(-1)


def position(tensor, spot):
    return tuple(torch.unravel_index(torch.tensor(spot), tensor.shape))


def fill(tensor, values):
    if tensor.numel():
        big = torch.finfo(tensor.dtype).max
        numbers = [max(-big, min(big, values())) for _ in range(tensor.numel())]
        tensor.copy_(torch.tensor(numbers, dtype=torch.float64).reshape(tensor.shape))


def what_it_creates(func, args, kwargs, rng):
    """Which of NaN, +Inf and -Inf come out of finite inputs."""
    created, n = set(), len(list(arguments(func, args, kwargs)))
    plans = [[v] * n for v in FILLS] + [[rng.choice(FILLS) for _ in range(n)] for _ in range(10 if n > 1 else 0)]
    for plan in [*plans, None, None, None, "as is"]:
        a, k = copied((args, kwargs))
        for number, (_, tensors, _) in enumerate(arguments(func, a, k)):
            for t in tensors:
                if plan is None:
                    fill(t, lambda: rng.choice(EXTREMES))
                elif plan != "as is":
                    fill(t, lambda number=number, plan=plan: plan[number])
        try:
            out, _, _ = outcome(func, a, k)
        except Exception:
            continue
        for o in out:
            created |= {n for n, m in (("n", o.isnan()), ("p", o == INF), ("m", o == -INF)) if bool(m.any())}
    return created


def is_moved(func, args, kwargs, base):
    """Whether every result is a value that went in, or zero."""
    given = [t.detach().double().reshape(-1) for _, ts, _ in arguments(func, args, kwargs) for t in ts]
    pool = torch.cat([*given, torch.zeros(1)])
    return all(bool(torch.isin(o, pool).all()) for o in base if o.numel())


def learn_argument(func, args, kwargs, index, entry, base, base_other, shapes):
    """Change one argument element by element, and see what comes of it."""
    _, tensors, written = list(arguments(func, args, kwargs))[index]
    last = tensors[0].numel() - 1

    def run(spot, value):
        a, k = copied((args, kwargs))
        mine = list(arguments(func, a, k))[index][1]
        try:
            if spot == "all":
                for t in mine:
                    t.fill_(value)
            else:
                mine[0][position(mine[0], spot)] = value
            return (mine[0], *outcome(func, a, k)[:2])
        except Exception:
            return None

    def same_others(other):
        return len(other) == len(base_other) and all(
            x.shape == y.shape and torch.equal(x, y) for x, y in zip(other, base_other, strict=True)
        )

    for spot in {0, last} if last >= 0 else ():  # a finite change: is it noticed, is it only left where it was?
        if (done := run(spot, 0.8125)) is None:
            continue
        mine, now, other = done
        changed = [int(moved(x, y).sum()) if x.shape == y.shape else 9 for x, y in zip(base, now, strict=False)]
        if not any(changed) and same_others(other):
            entry["ignores"] = True
        elif not written or sum(changed) > 1 or float(mine[position(mine, spot)]) != 0.8125:
            entry["kept"] = False
    for letter, bad in (("n", NAN), ("p", INF), ("m", -INF)):
        for spot in [*({0, last // 2, last} if last >= 0 else ()), "all"]:
            if (done := run(spot, bad)) is None:
                continue
            mine, now, other = done
            became, n = kinds(base, now)
            entry["reads"] |= bool(became) or not same_others(other)
            entry[letter] |= became
            if spot == "all":
                continue
            if n > max([1] + [o.numel() // max(1, mine.numel()) for o in now]):
                entry["one"] = False
            for x, y, shape in zip(base, now, shapes, strict=False):
                changed = moved(x, y) if x.shape == y.shape else None
                if changed is None:
                    entry["same"] = False
                elif bool(changed.any()):
                    where = image(mine.shape, position(mine, spot), shape)
                    if where is None or bool((changed & ~where).any()):
                        entry["same"] = False
                    entry["tried"] |= y.numel() > 1


def learn(func, calls):
    """The entry of one overload."""
    creates, entries, rng, moves = set(), {}, random.Random(1), True
    for args, kwargs in calls:
        creates |= what_it_creates(func, args, kwargs, rng)
        for again in (False, True):
            if again:
                args, kwargs = copied((args, kwargs))
                for _, tensors, _ in arguments(func, args, kwargs):
                    for t in tensors:
                        fill(t, lambda: rng.choice(ORDINARY))
            try:
                base, base_other, shapes = outcome(func, *copied((args, kwargs)))
            except Exception:
                continue
            if not base:
                continue
            moves = moves and is_moved(func, args, kwargs, base)
            for index, (name, _, _) in enumerate(arguments(func, args, kwargs)):
                entry = entries.setdefault(
                    name,
                    {"n": set(), "p": set(), "m": set(), "one": True, "same": True, "ignores": False, "kept": True}
                    | {"reads": False, "tried": False},
                )
                learn_argument(func, args, kwargs, index, entry, base, base_other, shapes)
    only_moves = moves and not creates and entries and all(not e[x] - {x} for e in entries.values() for x in "npm")
    views = any(a.alias_info is not None and not a.alias_info.is_write for a in func._schema.arguments)
    for entry in entries.values():
        entry["same"] = entry["same"] and entry["tried"]  # a scalar stays in its place whatever is done with it
    return {
        "creates": "".join(sorted(creates)),
        "is": ["view"] * views + ["moves"] * bool(only_moves),
        "values": sorted({n for args, kwargs in calls for n, _, _ in arguments(func, args, kwargs)}),
        "args": {
            name: {x: "".join(sorted(e[x])) for x in "npm"}
            | {"is": [w for w in ("one", "same", "ignores", "kept") if e[w]]}
            for name, e in sorted(entries.items())
            if e["reads"]
        },
    }


def capture_database():
    """Run the samples of every operator of the database."""
    for op in op_db:
        try:
            signal.alarm(4)
            if torch.float32 not in op.supported_dtypes("cpu"):
                continue
            samples = op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd)
            for number, sample in enumerate(samples):
                if number >= 5:
                    break
                for variant in (op.op, op.inplace_variant):
                    if variant is not None:
                        capture_sample(op, variant, sample)
        except KeyboardInterrupt:
            raise
        except BaseException:  # a timeout, an operator that this build lacks
            continue
        finally:
            signal.alarm(0)


def capture_sample(op, variant, sample):
    try:
        with Capture():
            x = sample.input
            if variant is op.inplace_variant:
                x = tree_map(lambda t: t.detach().clone() if isinstance(t, torch.Tensor) else t, x)
            out = variant(x, *sample.args, **sample.kwargs)
            outs = [t for t in tree_leaves(out) if is_value(t) and t.requires_grad]
            if outs:
                sum(t.sum() for t in outs).backward()
    except TimeoutError:
        raise
    except Exception:
        return


def capture_training():
    """What training loops use and the database lacks: optimizers, clipping, casts."""
    with Capture():
        for dtype in (torch.float32, torch.float16):
            for foreach in (False, True):
                for make in (
                    torch.optim.Adam,
                    torch.optim.AdamW,
                    torch.optim.SGD,
                    torch.optim.RMSprop,
                    torch.optim.Adagrad,
                ):
                    p, q = (torch.nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in ((3,), (2, 2)))
                    opt = make([p, q], lr=0.1, foreach=foreach)
                    for _ in range(2):
                        p.grad, q.grad = torch.randn(3, dtype=dtype), torch.randn(2, 2, dtype=dtype)
                        opt.step()
                    torch.nn.utils.clip_grad_norm_([p, q], 0.1, foreach=foreach)
        for d in (torch.float16, torch.bfloat16, torch.float64):
            torch.randn(3).to(d).float()
            torch.randn(2, 3).to(d).copy_(torch.randn(3))
            torch.randn(3).copy_(torch.randn(3).to(d))
        torch.randn(4, 4).contiguous().t().contiguous()
        torch.nn.functional.rrelu(torch.randn(9, requires_grad=True), training=True).sum().backward()


def in_child(func, calls):
    """The entry of one overload, from a process of its own: a few crash on extreme values."""
    end, start = os.pipe()
    if os.fork() == 0:
        os.close(end)
        signal.alarm(20)
        try:
            os.write(start, json.dumps(learn(func, calls)).encode())
        except BaseException as error:
            print("left out", func, repr(error)[:100], file=sys.stderr)
        os._exit(0)
    os.close(start)
    with os.fdopen(end, "rb") as pipe:
        answer = pipe.read()
    os.wait()
    return json.loads(answer) if answer else None


def stop(*_):
    raise TimeoutError


def main():
    """Learn everything, and write the table: one line per operator."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, stop)
    capture_database()
    capture_training()
    # what `empty` returns is what was there before: nothing to learn
    calls_of = {str(func): (func, calls) for func, calls in captured.items() if calls and "empty" not in str(func)}
    table = {name: entry for name, (func, calls) in calls_of.items() if (entry := in_child(func, calls))}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in sorted(table.items()))
    version = torch.__version__.partition("+")[0]
    TARGET.write_text(f'{{"torch": {json.dumps(version)}, "operators": {{\n{lines}\n}}}}\n')
    print(f"{len(table)} overloads learned from torch {version}")


if __name__ == "__main__":
    main()
