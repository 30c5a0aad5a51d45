"""
Every way in which torch refuses a write in place: named, in torch's words, with an advice that works.

The table is written from torch's sources (`VariableTypeUtils.h`, `variable.cpp`, `custom_function.cpp`, `TensorImpl.h`,
`MemoryOverlap.cpp`, `TensorIterator.cpp`, functorch). Each program is given with what its line says, and with the same
program after the advice; what that must give was worked out by hand.
"""

from __future__ import annotations

import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

from audited import NEEDS_SAVINGS, audited
from dispatchmon.words.refusals import PHRASES, advice

pytestmark = NEEDS_SAVINGS


def grads():
    """A value with a history: [1, 1, 1, 1]."""
    return torch.ones(4, requires_grad=True) * 1


class Flat(torch.autograd.Function):
    """Gives a view of what it was given; `copy` is the advice."""

    @staticmethod
    def forward(ctx, x, copy):
        return x.view(-1).clone() if copy else x.view(-1)

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class Increment(torch.autograd.Function):
    """Writes its argument, and says so."""

    @staticmethod
    def forward(ctx, x, returns):
        ctx.mark_dirty(x)
        x.add_(1)
        return x if returns == "it" else (x, x.clone()) if returns == "two" else x * 2

    @staticmethod
    def backward(ctx, grad, *_):
        return grad, None


def leaf(fixed):
    w = nn.Parameter(torch.ones(2))
    if fixed == "itself":
        with torch.no_grad():
            w += 1
    elif fixed == "changed":
        w = w + 1
    else:
        w += 1
    return w


def leaf_by_index(fixed):
    w = nn.Parameter(torch.ones(2))
    if fixed == "itself":
        with torch.no_grad():
            w[0] = 2
        return w
    if fixed == "changed":
        y = w.clone()
        y[0] = 2
        return y
    w[0] = 2
    return w


def view_of_leaf(fixed):
    w = nn.Parameter(torch.ones(2))
    if fixed == "itself":
        with torch.no_grad():
            w[:1].mul_(2)
        return w
    w[:1].mul_(2)
    return w


def one_of_several(fixed):
    a, _ = grads().chunk(2)
    if fixed:
        a = a * 2
    else:
        a *= 2
    return a


def all_of_several(fixed):
    x = grads().view(2, 2)
    for i, row in enumerate(x.unbind(1)):
        if fixed:
            x[:, i] *= 2
        else:
            row.mul_(2)
    return x


def stale(fixed):
    x = grads()
    with torch.no_grad():
        v = x[:2].clone() if fixed else x[:2]
    x.add_(1)
    return v * 2


def made_without_grad(fixed):
    x = grads()
    with torch.no_grad():
        v = x[:2]
        if fixed:
            v.mul_(2)
    if not fixed:
        v.mul_(2)
    return x


def made_in_inference_mode(fixed):
    x = grads()
    with torch.inference_mode():
        v = x[:2]
    v = v.clone() if fixed else v
    v.mul_(2)
    return v


def of_a_function(fixed):
    y = Flat.apply(grads(), fixed)
    y.mul_(2)
    return y


def dirty_leaf(fixed):
    x = torch.ones(2, requires_grad=True)
    x = x.clone() if fixed else x
    return Increment.apply(x, "it")


def dirty_view(fixed):
    x = grads()[:2]
    x = x.clone() if fixed else x
    return Increment.apply(x, "two")[0]


def dirty_and_gone(fixed):
    return Increment.apply(grads(), "it" if fixed else "another")


def inference(fixed):
    with torch.inference_mode():
        total = torch.ones(2)
    if fixed:
        total = total / 2
    else:
        total /= 2
    return total


def detached_view(fixed):
    part = grads()[:2]
    return part.detach() if fixed else part.detach_()


def out_with_grad(fixed):
    a, room = grads(), torch.empty(4)
    if fixed:
        room = torch.mul(a, 2)
    else:
        torch.mul(a, 2, out=room)
    return room


def resized(fixed):
    w = torch.ones(2, requires_grad=True)
    return torch.ones(1) if fixed else w.resize_(1)


def expanded(fixed):
    x = torch.ones(1).expand(3)
    x = x.clone() if fixed else x
    x.mul_(2)
    return x


def overlapping(fixed):
    x = torch.ones(3)
    x[1:].add_(x[:-1].clone() if fixed else x[:-1])
    return x


def dtype(fixed):
    count = torch.ones(2, dtype=torch.int64)
    if fixed:
        count = count / 2
    else:
        count /= 2
    return count


def broadcast(fixed):
    x = torch.ones(2)
    if fixed:
        x = x + torch.ones(2, 2)
    else:
        x += torch.ones(2, 2)
    return x


def batched(fixed):
    def count(a):
        total = a.new_zeros(1) if fixed else torch.zeros(1)
        total[0] = a
        return total

    return torch.vmap(count)(torch.ones(2))


def captured(fixed):
    seen = torch.zeros(2)

    def inner(a, *seen_again):
        if fixed:
            return (a + seen_again[0]).sum()
        seen.add_(a)
        return a.sum()

    return torch.func.grad(inner)(torch.ones(2), *((seen,) if fixed else ()))


def zero_tensor(fixed):
    zeros = torch._efficientzerotensor(2)
    zeros = zeros.clone() if fixed else zeros
    zeros.add_(1)
    return zeros


# program: reason, operator, words of the line (None: the line does not say), line, whether the memory was written
# nevertheless, what the advice must say (by way of fixing), and what the program gives when it is followed.
TABLE = {
    leaf: ("leaf", "aten.add_.Tensor", "w", "w += 1", False,
           {"itself": "`w += 1` under `with torch.no_grad():`", "changed": "`w = w + 1`"}, [2, 2]),
    leaf_by_index: ("leaf view", "aten.copy_.default", "w[0]", "w[0] = 2", False,
                    {"itself": "`w[0] = 2` under `with torch.no_grad():`", "changed": "`y = w.clone()`"}, [2, 1]),
    view_of_leaf: ("leaf view", "aten.mul_.Tensor", "w[:1]", "w[:1].mul_(2)", False,
                   {"itself": "`w[:1].mul_(2)` under `with torch.no_grad():`"}, [2, 1]),
    one_of_several: ("several views", "aten.mul_.Tensor", "a", "a *= 2", False, {True: "`a = a * 2`"}, [2, 2]),
    all_of_several: ("several views", "aten.mul_.Tensor", "row", "row.mul_(2)", False,
                     {True: "to change the whole tensor, write to an index of it, as x[:, i]"}, [[2, 2], [2, 2]]),
    stale: ("stale view", "aten.add_.Tensor", None, "x.add_(1)", True, {True: "or a .clone() of it before"}, [2, 2]),
    made_without_grad: ("no_grad view", "aten.mul_.Tensor", "v", "v.mul_(2)", False,
                        {True: "in the same mode, both under torch.no_grad()"}, [2, 2, 1, 1]),
    made_in_inference_mode: ("inference view", "aten.mul_.Tensor", "v", "v.mul_(2)", False,
                             {True: "to v.clone()"}, [2, 2]),
    of_a_function: ("function view", "aten.mul_.Tensor", "y", "y.mul_(2)", False,
                    {True: "return a .clone() from the forward()"}, [2, 2, 2, 2]),
    dirty_leaf: ("dirty leaf", "aten.add_.Tensor", "x", "x.add_(1)", True, {True: ".clone()"}, [2, 2]),
    dirty_view: ("dirty view", "aten.add_.Tensor", "x", "x.add_(1)", True, {True: ".clone()"}, [2, 2]),
    dirty_and_gone: ("not returned", None, None, None, None, {True: "return the input that forward() writes"},
                     [2, 2, 2, 2]),
    inference: ("inference", "aten.div_.Tensor", "total", "total /= 2", True, {True: "`total = total / 2`"}, [0.5, 0.5]),
    detached_view: ("detached view", "aten.detach_.default", "part", "part.detach_()", False,
                    {True: "use .detach() instead of .detach_()"}, [1, 1]),
    out_with_grad: ("out", "aten.mul.out", "room", "torch.mul(a, 2, out=room)", False,
                    {True: "`room = ...`, instead of out=room"}, [2, 2, 2, 2]),
    resized: ("resized", "aten.resize_.default", "w", "w.resize_(1)", False, {True: "make a new tensor"}, [1]),
    expanded: ("expanded", "aten.mul_.Tensor", "x", "x.mul_(2)", False, {True: "`x.clone()`"}, [2, 2, 2]),
    overlapping: ("overlap", "aten.add_.Tensor", "x[1:]", "x[1:].add_(", False,
                  {True: "a .clone() of what it reads"}, [1, 2, 2]),
    dtype: ("dtype", "aten.div_.Tensor", "count", "count /= 2", False, {True: "`count = count / 2`"}, [0.5, 0.5]),
    broadcast: ("broadcast", "aten.add_.Tensor", "x", "x += torch.ones(2, 2)", False,
                {True: "`x = x + torch.ones(2, 2)`"}, [[2, 2], [2, 2]]),
    batched: ("vmap", "aten.copy_.default", "total[0]", "total[0] = a", False,
              {True: "of a tensor that is mapped, as `x.new_zeros(...)`"}, [[1], [1]]),
    captured: ("captured", "aten.add_.Tensor", "seen", "seen.add_(a)", False,
               {True: "give the function seen as an argument"}, [1, 1]),
    zero_tensor: ("zero tensor", "aten.add_.Tensor", "zeros", "zeros.add_(1)", False,
                  {True: "`zeros = zeros.add(1)`"}, [1, 1]),
}  # fmt: skip


def line_of(source):
    number = int(source.split(":")[1].split(" ")[0])
    return Path(__file__).read_text().splitlines()[number - 1]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("program", TABLE, ids=lambda each: each.__name__)
def test_a_refused_write_is_explained(program):
    """One finding, for this line and operator; torch's own words, whole; the run ended with it."""
    why, op, words, line, happened, says, _ = TABLE[program]
    outcome = audited(lambda: program(False))
    assert any(phrase in str(outcome.error) for phrase in PHRASES[why])
    found = [f for f in outcome.hazards if f.kind == "blocked-write"]
    assert len(found) == 1, outcome.hazards
    (found,) = found
    assert (found.severity, found.raises, found.explains) == ("error", True, True)
    assert found.details["refused"] == why
    assert " ".join(str(outcome.error).split())[:80].replace("allowed.You", "allowed. You").rstrip(".") in found.message
    for hint in ("You should replace the inplace operation by an out-of-place one", "You can fix this by cloning",
                 "You can clarify your code", "Please clone() the tensor"):  # fmt: skip
        assert (hint in str(outcome.error)) == (hint in found.message)
    if op is not None:
        assert found.op == op
        assert line in line_of(found.source)
        assert bool(found.details.get("happened")) == happened
        assert ("The memory holds the new value" in found.message) == (happened and why != "stale view")
    if words is not None:
        assert f"`{words}`" in found.message
        if happened is False and "[" not in words and why != "vmap":
            assert found.shape is not None
    for text in says.values():
        assert text in found.suggestion


@pytest.mark.parametrize(
    ("program", "way"), [(p, way) for p, case in TABLE.items() for way in case[5]], ids=lambda each: getattr(each, "__name__", each)
)  # fmt: skip
def test_the_advice_works(program, way):
    """The program that follows it raises nothing, gives what was meant, has no hazard."""
    got = []
    outcome = audited(lambda: got.append(program(way)))
    assert outcome.error is None
    assert outcome.hazards == ()
    assert got[0].tolist() == TABLE[program][6]


def test_a_parameter_has_its_name():
    """Whatever the line calls it; and the module whose forward was refused."""

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, x):
            s = self.scale
            s *= 2
            return x * s

    model = nn.Sequential(nn.Linear(3, 3), Scaled())
    (found,) = audited(lambda: model(torch.ones(2, 3)), model).hazards
    assert (found.name, found.module, found.op, found.shape) == ("1.scale", "1", "aten.mul_.Tensor", (3,))
    assert "`s`, which is `1.scale` of shape [3]" in found.message


def test_a_refusal_that_the_program_survives_explains_nothing():
    """The kernel refused, the program went on; the run ended with another error."""

    def run():
        for _ in range(3):
            with pytest.raises(RuntimeError):
                torch.ones(1).expand(3).add_(1)
        raise ValueError("something else")

    outcome = audited(run)
    assert {(f.kind, f.explains, f.count) for f in outcome.hazards} == {("blocked-write", False, 3)}


def test_a_write_that_is_tried_and_caught_is_no_finding():
    """The program asks whether the dtype fits, and goes on."""

    def run():
        count = torch.ones(2, dtype=torch.int64)
        try:
            count /= 2
        except RuntimeError:
            count = count / 2
        return count

    outcome = audited(run)
    assert (outcome.error, outcome.hazards) == (None, ())


def test_an_error_that_is_caught_and_raised_anew_is_explained():
    """`raise ValueError from error`: the cause is what torch refused."""

    def run():
        w = nn.Parameter(torch.ones(3))
        try:
            w.add_(1)
        except RuntimeError as error:
            raise ValueError("training failed") from error

    (found,) = audited(run).hazards
    assert (found.kind, found.op, found.explains) == ("blocked-write", "aten.add_.Tensor", True)


def test_reading_the_frames_keeps_nothing_alive():
    """A frame that goes on after the block does not hold the values that it has dropped."""
    values = [torch.ones(3)]
    gone = weakref.ref(values[0])

    def run():
        value = values[0]
        w = nn.Parameter(torch.ones(3))
        w.add_(value)

    outcome = audited(run)
    outcome.error.__traceback__ = None
    values.clear()
    assert gone() is None


def test_every_reason_has_an_advice():
    """Also one without words of the line."""
    assert all(advice({"refused": why}) for why in PHRASES)
    assert set(PHRASES) - {"other"} <= {case[0] for case in TABLE.values()}
