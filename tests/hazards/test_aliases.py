"""One name is written, another name of the same memory is read: told where it can be told without a false word."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from audited import NEEDS_SAVINGS, audited

pytestmark = NEEDS_SAVINGS


def trained_copy(make):
    """Three steps of an attack on what `make` gave for a clean image; what the distance to it is."""

    def run():
        clean = torch.rand(3)
        adversary = make(clean)
        optimizer = torch.optim.SGD([adversary], lr=0.1)
        distances = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = adversary.square().sum()
            loss.backward()
            optimizer.step()
            distances.append(float((adversary - clean).abs().sum()))
        return distances

    return run


SHARING = {
    "detach": lambda x: x.detach().requires_grad_(),
    "parameter": lambda x: nn.Parameter(x),
    "data": lambda x: x.data.requires_grad_(),
}
COPYING = {"detach": lambda x: x.detach().clone().requires_grad_(), "parameter": lambda x: nn.Parameter(x.clone())}


@pytest.mark.parametrize("make", SHARING.values(), ids=SHARING)
def test_a_trained_alias_takes_the_original_with_it(make):
    """The step writes what the distance is measured to, which stays 0."""
    distances = []
    outcome = audited(lambda: distances.extend(trained_copy(make)()))
    assert distances == [0, 0, 0]
    found = [f for f in outcome.hazards if f.kind == "alias-overwritten"]
    assert {f.op for f in found} == {"aten.add_.Tensor"}
    assert {f.phase for f in found} == {"optimizer"}
    assert all("optimizer.step()" in line_of(f.source) for f in found)
    assert all(f.severity == "warning" for f in found)


@pytest.mark.parametrize("make", COPYING.values(), ids=COPYING)
def test_a_trained_copy_is_no_finding(make):
    """The distance grows."""
    assert audited(trained_copy(make)).hazards == ()


def test_what_is_made_of_a_trained_leaf_is_read_in_peace():
    """Logging its detached value, averaging it, copying it to another model: all of the value after the step."""
    model, target = nn.Linear(3, 3), nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    average = copy.deepcopy(model)

    def run():
        free = torch.zeros(3, requires_grad=True)
        own = torch.optim.SGD([free], lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            own.zero_grad()
            (model(torch.ones(2, 3)).sum() + free.sum()).backward()
            optimizer.step()
            own.step()
            free.detach().norm()
            free.data.norm()
            for name, p in model.named_parameters():
                p.detach().norm()
                average.get_parameter(name).data.lerp_(p.data, 0.1)
            target.load_state_dict(model.state_dict())
            free.data.clamp_(-1, 1)

    assert audited(run, model).hazards == ()


def line_of(source):
    return Path(__file__).read_text().splitlines()[int(source.split(":")[1].split(" ")[0]) - 1]


def test_weights_compared_with_themselves():
    """`before = model.weight.data`, a step, and nothing seems to have changed."""
    model = nn.Linear(2, 2)

    def run(copies):
        before = model.weight.data.clone() if copies else model.weight.data
        model(torch.ones(1, 2)).sum().backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
        return (model.weight - before).abs().sum()

    (found,) = audited(lambda: run(False), model).hazards
    assert (found.kind, found.op, found.victim.op) == ("alias-overwritten", "aten.sub_.Tensor", "aten.sub.Tensor")
    assert "compares memory with itself" in found.message
    assert audited(lambda: run(True), model).hazards == ()


def test_a_value_minus_itself_on_purpose_is_no_finding():
    """`x - x.detach()` of a value that nobody wrote, `x != x`, an operand written before it had two names."""

    def run():
        x = torch.ones(3, requires_grad=True) * 2
        surrogate = (x - x.detach()).exp()
        y = torch.zeros(3).add_(1)
        return surrogate.sum() + (y != y).sum() + (y - y).sum()

    assert audited(run).hazards == ()


class Scaled(nn.Module):
    """A layer that changes its weight under another name."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x):
        w = self.weight
        w += 1
        return x * w


class Repaired(Scaled):
    """The same with a copy; and the weight is kept in bounds on purpose."""

    def forward(self, x):
        self.weight.clamp_(0, 5)
        w = self.weight
        w = w + 1
        w *= 2
        return x * w


def test_a_parameter_under_another_name_without_gradients():
    """With gradients torch refuses it; without, every call changes the weight."""
    with torch.no_grad():
        model = Scaled()
        (found,) = audited(lambda: [model(torch.ones(3)) for _ in range(2)], model).hazards
        assert (found.kind, found.op, found.name, found.count) == ("parameter-write", "aten.add_.Tensor", "weight", 2)
        assert model.weight.tolist() == [3, 3, 3]
        model = Repaired()
        assert audited(lambda: model(torch.ones(3)), model).hazards == ()


def ban(scores, token):
    scores[:, token] = float("-inf")
    return scores


def banned(scores, token):
    scores = scores.clone()
    scores[:, token] = float("-inf")
    return scores


def ban_(scores, token):
    scores[:, token] = float("-inf")
    return scores


def chosen(rule, keeps, same_name=False):
    """Three steps of a search that keeps the raw scores, or reads them under their old name."""

    def run():
        kept, raw = [], torch.ones(1, 4)
        for _ in range(3):
            logits = raw * 2
            if keeps:
                kept.append(logits)
            if same_name:
                logits = rule(logits, 1)
                logits.argmax()
            else:
                scores = rule(logits, 1)
                scores.argmax()
                if not keeps and rule is not ban_:
                    logits.logsumexp(1)
        return torch.cat(kept).sum() if keeps else None

    return run


@pytest.mark.parametrize(("keeps", "reader"), [(True, "aten.cat.default"), (False, "aten.logsumexp.default")])
def test_a_plain_function_writes_what_its_caller_still_has(keeps, reader):
    """In a list, or under the old name; each of the three writes counts."""
    (found,) = audited(chosen(ban, keeps)).hazards
    assert (found.kind, found.victim.op, found.count) == ("input-overwritten", reader, 3)
    assert "`scores[:, token]`" in found.message
    assert "def ban" in Path(__file__).read_text().splitlines()[int(found.source.split(":")[1].split(" ")[0]) - 2]


@pytest.mark.parametrize(
    "run",
    [chosen(banned, True), chosen(banned, False), chosen(ban, False, same_name=True), chosen(ban_, False)],
    ids=["a copy, kept", "a copy", "the same name", "the old name is not read"],
)
def test_a_plain_function_may_write_what_nobody_reads(run):
    """Nothing is said."""
    assert audited(run).hazards == ()


@pytest.mark.parametrize("kind", [torch.optim.Adamax, torch.optim.RAdam])
def test_a_view_that_is_out_of_date_is_not_asked(kind):
    """Optimizers write complex parameters through real views, which autograd would refuse to look at."""
    weight = nn.Parameter(torch.ones(3, dtype=torch.complex64))
    optimizer = kind([weight], lr=0.1, foreach=False)

    def run():
        for _ in range(2):
            optimizer.zero_grad()
            weight.abs().sum().backward()
            optimizer.step()

    outcome = audited(run)
    assert (outcome.error, outcome.hazards) == (None, ())
