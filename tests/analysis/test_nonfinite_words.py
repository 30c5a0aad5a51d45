"""What `nonfinite` says, wording by wording, in small programs; and what it must not say."""

import json

import pytest
import torch
import torch.nn as nn

import nonfinite_ranks
from command_line import run as command
from dispatchmon import DispatchMonitor, NonFiniteError, open_trace
from dispatchmon.analysis.nonfinite import find_nonfinite

INF, NAN = float("inf"), float("nan")


@pytest.fixture
def told(tmp_path):
    """Runs a program under a monitor, and gives the answer about it."""

    def tell(run, model=None, **settings):
        path = tmp_path / "trace.arrow"
        with DispatchMonitor(model, path, quiet=True, overwrite=True, **settings) as monitor:
            run()
        assert monitor.error is None
        return find_nonfinite(open_trace(path))

    return tell


def trained(model, loss, steps=1, **settings):
    """A program that trains a model with SGD; settings of the optimizer are set after it was made."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.param_groups[0].update(settings)

    def run():
        for _ in range(steps):
            optimizer.zero_grad()
            loss(model).backward()
            optimizer.step()

    return run


def large_row(*, dtype=torch.float16):
    """Three tokens, of which the second is so large that its square is beyond float16."""
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(3, 6, generator=generator) * torch.tensor([[1.0], [900.0], [1.0]])).to(dtype)


# ------------------------------------------------------------------------------------------------- divisions
def test_zero_by_zero_is_counted(told):
    """Numerator and divisor are told apart; each NaN is 0 divided by 0."""
    first = told(lambda: torch.tensor([0.0, 3.0, 0.0]) / torch.tensor([0.0, 2.0, 0.0])).first
    said = "made 2 NaN of 3 elements from finite inputs, 0 divided by 0 in 2 places (numerator min 0, max 3; divisor min 0, max 2) at"
    assert said in first.message


def test_a_scalar_divisor_is_shown(told):
    """A number in the code is the divisor."""
    first = told(lambda: torch.tensor([0.0, 1.0, -2.0]) / 0.0).first
    assert (
        "0 divided by 0 in 1 place and divided by 0 in 2 places (numerator min -2, max 1; divisor 0.0)" in first.message
    )


def test_dividing_what_was_not_finite(told):
    """Of a mask that is divided by 0 nothing is counted that cannot be known."""
    first = told(lambda: torch.tensor([-INF, 1.0, 2.0]) / 0.0).first
    assert "from inputs that held 1 -Inf, by dividing by 0 (numerator min 1, max 2; divisor 0.0) at" in first.message


def test_a_division_that_overflows_is_no_division_by_zero(told):
    """1e38 / 1e-10 is Inf; the divisor is not 0, and is not said to be."""
    first = told(lambda: torch.tensor([1e38, 1.0]) / torch.tensor([1e-10, 1.0])).first
    assert "from finite inputs (numerator min 1, max 1e+38; divisor min 1e-10, max 1) at" in first.message


def test_a_divisor_of_many_elements_is_broadcast(told):
    """One zero divides a column."""
    first = told(lambda: torch.ones(4, 2) / torch.tensor([0.0, 1.0])).first
    assert "by dividing by 0 in 4 places" in first.message


def test_an_element_of_a_list_is_told_by_itself(told):
    """`_foreach_div`: the second pair is at fault, and its numbers are said."""
    pairs = [torch.full((2,), 5.0), torch.tensor([0.0, 1.0])], [torch.full((2,), 7.0), torch.tensor([0.0, 2.0])]
    first = told(lambda: torch._foreach_div(*pairs)).first
    assert "0 divided by 0 in 1 place (numerator min 0, max 1; divisor min 0, max 2)" in first.message


def test_the_same_is_said_while_running(tmp_path):
    """The error has the sentence of the command."""
    with (
        pytest.raises(NonFiniteError) as caught,
        DispatchMonitor(None, tmp_path / "t.arrow", quiet=True, on_nonfinite="raise"),
    ):
        torch.zeros(8) / 0.0
    assert "0 divided by 0 in 8 places (numerator min 0, max 0; divisor 0.0)" in str(caught.value)
    assert find_nonfinite(open_trace(tmp_path / "t.arrow")).first.message == str(caught.value)


# ------------------------------------------------------------------------------------------------- what it reached
def test_what_the_model_returns(told):
    """It is the result of the model, also behind a view; what the program keeps has not been forgotten."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Flatten(0))
    nn.init.eye_(model[0].weight)  # 0 * Inf, whatever weights there would be
    with torch.no_grad():
        assert list(told(lambda: model(torch.full((1, 2), INF)), model).first.spread) == ["result"]


def test_what_the_program_keeps(told, tmp_path, capsys):
    """Of a value outside the model it is said what is known: no operator read it again."""
    assert list(told(lambda: torch.zeros(2).log()).first.spread) == ["end"]
    out = command(capsys, "nonfinite", tmp_path / "trace.arrow")[1]
    assert "    a result that no operator read again: aten.log.default outside every module at " in out


class Interrupted(nn.Module):
    """A model whose call ends early."""

    def forward(self, x):
        x.log()
        raise KeyError


def test_a_call_that_ended_early_has_no_result(told, tmp_path):
    """What a model had calculated when Python raised is not what it returned."""
    model = Interrupted()
    with pytest.raises(KeyError):
        told(lambda: model(torch.zeros(2)), model)
    assert list(find_nonfinite(open_trace(tmp_path / "trace.arrow")).first.spread) == ["end"]


def test_the_operator_that_raised(told, tmp_path):
    """Sampling refuses NaN: the trace ends with it."""
    with pytest.raises(RuntimeError, match="probability tensor"):
        told(lambda: torch.multinomial(torch.zeros(3).log().softmax(-1), 1))
    spread = find_nonfinite(open_trace(tmp_path / "trace.arrow")).first.spread
    assert {what: where.op for what, where in spread.items()} == {"raised": "aten.multinomial.default"}


def test_a_mask_is_not_blamed_for_what_raised(told, tmp_path):
    """A mask was read by an operator that raised for its shape."""
    with pytest.raises(RuntimeError, match="must match"):
        told(lambda: torch.full((3,), -INF) + torch.ones(2))
    assert not find_nonfinite(open_trace(tmp_path / "trace.arrow")).found


def test_gradients_have_names_without_an_optimizer(told):
    """Backward alone: the gradient is told by its parameter."""
    model = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    first = told(lambda: model(torch.ones(1, 2)).sqrt().sum().backward(), model).first
    assert first.spread["gradient"].name == "weight.grad"


# ------------------------------------------------------------------------------------------------- who is blamed
def test_a_mask_is_blamed_only_if_nothing_else_was(told):
    """An overflow in the same row as a mask: the softmax is NaN because of the overflow."""
    scores = torch.tensor([[60000.0, 1.0, 2.0]], dtype=torch.float16)
    mask = torch.tensor([[False, False, True]])
    answer = told(lambda: (scores * 2).masked_fill(mask, -INF).softmax(-1))
    nan = next(o for o in answer.origins if o.what == "nan")
    assert "; the +Inf was made by `aten.mul.Tensor` at " in nan.message
    assert [link.op for link in nan.cause][-1] == "aten.mul.Tensor"
    assert not any("masked_fill" in link.message and "on purpose" in link.message for link in nan.cause)


def test_a_mask_alone_is_blamed(told):
    """A row that is masked everywhere."""
    answer = told(lambda: torch.ones(1, 3).masked_fill(torch.ones(1, 3).bool(), -INF).softmax(-1))
    assert "the -Inf was filled in on purpose by `aten.masked_fill.Scalar`" in answer.first.message


@pytest.mark.parametrize("rate", [NAN, INF])
@pytest.mark.parametrize("foreach", [False, True])
def test_a_learning_rate_is_an_argument(told, rate, foreach):
    """Nobody filled it in on purpose: the argument was not finite, and every input was."""
    model = nn.Linear(2, 1)
    first = told(trained(model, lambda m: m(torch.ones(3, 2)).sum(), lr=rate, foreach=foreach), model).first
    assert (first.kind, first.inputs_finite, first.phase) == ("made", True, "optimizer")
    assert (
        f"; its argument `alpha` was {'NaN' if rate is NAN else '-Inf'}, which an optimizer makes of" in first.message
    )
    assert "on purpose" not in first.message


def test_an_optimizer_that_fills_its_state_does_so_on_purpose(told):
    """Only what is calculated with is an accident: a minimum begins at Inf."""
    model = nn.Linear(2, 1)

    class Best(torch.optim.SGD):
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    least = torch.full_like(p, INF)
                    p.grad.copy_(torch.minimum(least, p.grad))
            return super().step(closure)

    optimizer = Best(model.parameters(), lr=0.1)

    def run():
        model(torch.ones(3, 2)).sum().backward()
        optimizer.step()

    assert not told(run, model).found


# ------------------------------------------------------------------------------------------------- counts
def test_findings_of_one_line_are_one(told):
    """A line that does the same in each of five rounds, for the same reason."""
    answer = told(lambda: [torch.tensor([0.0, -1.0 - i]).sqrt() for i in range(5)])
    (origin,) = answer.origins
    assert (origin.count, origin.total) == (5, {"nan": 5, "inf": 0})
    assert origin.message.endswith("; the same 4 more times, 5 NaN in all")


def test_findings_of_two_lines_are_two(told):
    """Each line is told."""

    def run():
        torch.tensor(-1.0).sqrt()
        torch.tensor(-1.0).sqrt()

    assert [o.count for o in told(run).origins] == [1, 1]


def test_consequences_are_counted(told, tmp_path, capsys):
    """Where an Inf turns to NaN a second time, and where a NaN has a gradient, nothing new is said."""
    model = nn.Linear(2, 2)
    answer = told(
        trained(model, lambda m: (m(torch.ones(3, 2)).abs() + 200).exp().sub(INF).sum() + m.weight.sub(9).sqrt().sum()),
        model,
    )
    firsts = [(o.op, o.phase) for o in answer.origins if o.follows is None]
    assert len(firsts) == len(set(firsts))
    assert ("aten.sqrt.default", "forward") in firsts
    out = command(capsys, "nonfinite", tmp_path / "trace.arrow")[1]
    follow = sum(o.count for o in answer.origins if o.follows is not None)
    assert (f"{follow} later operator" in out) == bool(follow)


# ------------------------------------------------------------------------------------------------- deliberate
def keep(model, name, value):
    """Keep a value as a buffer of the model."""
    model.register_buffer(name, value)
    return value


@pytest.mark.parametrize(
    "mask",
    [
        lambda: torch.log(torch.tril(torch.ones(4, 4))),
        lambda: torch.ones(4, 4).bool().tril().log(),
        lambda: (torch.arange(4)[:, None] >= torch.arange(4)).float().log(),
        lambda: torch.ones(4, 4).tril_().log_(),
    ],
)
def test_the_logarithm_of_zeros_and_ones_is_a_mask(told, mask):
    """Whether it is kept as a buffer, by the program, or not at all."""
    model, kept = nn.Linear(4, 4), []

    def run():
        kept.append(mask())
        scores = model(torch.ones(4, 4)) + keep(model, "mask", mask())
        (scores.softmax(-1) + (scores + mask()).softmax(-1)).sum().backward()

    answer = told(run, model)
    assert not answer.found
    assert answer.deliberate
    assert not [note for note in answer.notes if note.kind == "cleared"]


def test_the_logarithm_of_a_saturated_probability_is_none(told):
    """A sigmoid that is exactly 0 and 1 is arithmetic: its logarithm is an origin."""
    first = told(lambda: torch.tensor([-200.0, 200.0]).sigmoid().log()).first
    assert (first.op, first.kind) == ("aten.log.default", "made")


def test_a_mask_that_reaches_the_loss_is_harm(told):
    """Deliberate or not."""
    model = nn.Linear(2, 2)
    answer = told(lambda: (model(torch.ones(1, 2)) + torch.eye(2).log()).sum().backward(), model)
    assert "loss" in answer.first.spread


def test_summarize_says_that_masks_are_deliberate(told, tmp_path):
    """Of what was filled in; not of what was calculated."""
    told(lambda: torch.zeros(2, 2).masked_fill(torch.eye(2).bool(), -INF).softmax(-1))
    summary = open_trace(tmp_path / "trace.arrow").summarize()
    assert summary.stands_out.first_nonfinite.deliberate
    assert "It was filled in on purpose there, as masks do: `dispatchmon nonfinite` says whether" in str(summary)
    told(lambda: torch.where(torch.tensor([True, False]), torch.zeros(2), torch.tensor(-INF)))
    assert open_trace(tmp_path / "trace.arrow").summarize().stands_out.first_nonfinite.deliberate
    for run in (lambda: torch.zeros(2).log(), lambda: torch.ones(2) * INF, lambda: torch.tensor([1.0, NAN]) + 1):
        told(run)
        summary = open_trace(tmp_path / "trace.arrow").summarize()
        assert not summary.stands_out.first_nonfinite.deliberate
        assert "on purpose" not in str(summary)


# ------------------------------------------------------------------------------------------------- overflow to zero
@pytest.mark.parametrize(
    ("normalise", "zeroed"),
    [
        (lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6), "aten.rsqrt.default"),
        (lambda x: x / x.pow(2).sum(-1, keepdim=True).sqrt(), "aten.div.Tensor"),
        (lambda x: x * (x * x).mean(-1, keepdim=True).pow(-0.5), "aten.pow.Tensor_Scalar"),
        (lambda x: x.float() * torch.rsqrt(x.square().mean(-1, keepdim=True)).float(), "aten.rsqrt.default"),
        (lambda x: x * (1 / x.square().sum(-1, keepdim=True).sqrt()), "aten.reciprocal.default"),
    ],
)
def test_a_row_that_became_zero(told, tmp_path, capsys, normalise, zeroed):
    """A whole token is gone, and nothing is NaN: a warning of its own, with status 2. In float32 it is right."""
    x = large_row()
    assert normalise(large_row(dtype=torch.float64))[1].abs().max() > 0.1
    assert normalise(x)[1].eq(0).all()
    answer = told(lambda: normalise(x))
    (found,) = answer.vanished
    assert (answer.origins, answer.found, found.zeroed.op, found.zeros) == ((), True, zeroed, 6)
    assert "6 of 18 elements of the result are 0 and should not be" in found.message
    status, out, _ = command(capsys, "nonfinite", tmp_path / "trace.arrow")
    assert (status, out.count("made exact zeros of it")) == (2, 1)
    document = json.loads(command(capsys, "nonfinite", tmp_path / "trace.arrow", "--format", "json")[1])
    assert [each["zeroed"]["op"] for each in document["vanished"]] == [zeroed]
    assert not told(lambda: normalise(x.float())).found


def test_the_closing_line_names_it(tmp_path, capfd):
    """And the command to run next."""
    x = large_row()
    with DispatchMonitor(None, tmp_path / "t.arrow"):
        x * torch.rsqrt(x.square().mean(-1, keepdim=True))
    assert (
        "overflow in aten.pow.Tensor_Scalar that became zeros, step 0. Next: dispatchmon nonfinite"
        in capfd.readouterr().err
    )


HALF = torch.float16


@pytest.mark.parametrize(
    "run",
    [
        lambda: torch.tensor([1.0, 200.0]) / (1 + torch.exp(torch.tensor([1.0, 200.0]))),  # x * sigmoid(-x)
        lambda: torch.ones(2) * (1 / (1 + torch.exp(torch.tensor([1.0, 200.0])))),
        lambda: (
            torch.ones(4, dtype=HALF) * (1 / torch.tensor([1.0, 2.0, 1000.0, 3.0], dtype=HALF).square())
        ),  # far away
        lambda: torch.ones(2, dtype=HALF) / (1 + torch.tensor([1000.0, 2000.0], dtype=HALF).square()),  # all far away
        lambda: torch.tensor([1.0, 2.0, 1000.0], dtype=HALF) / (1 + torch.tensor([1.0, 2.0, 1000.0], dtype=HALF) ** 2),
        lambda: torch.ones(3) / torch.tensor([1.0, INF, 2.0]),
        lambda: torch.ones(3) * torch.tensor([1.0, 0.0, 2.0]).reciprocal().reciprocal(),  # 1 / (1 / 0)
        lambda: torch.ones(2, 2).masked_fill(torch.eye(2).bool(), -INF).exp() * 3,
        lambda: torch.ones(2, 2).masked_fill(torch.eye(2).bool(), -INF).softmax(-1) @ torch.ones(2, 2),
    ],
)
def test_what_becomes_zero_rightly_is_no_warning(told, run):
    """Saturation, far neighbours, masks: the zeros are what they stand for, or as good as."""
    assert not told(run).found


def test_a_program_that_looks_for_it_is_no_warning(told):
    """Where the overflow is looked for, something else is put there."""

    def run():
        x = large_row()
        square = x.square().mean(-1, keepdim=True)
        return torch.where(square.isinf(), x.sign(), x * square.rsqrt())

    assert not told(run).found


# ------------------------------------------------------------------------------------------------- ranks
@pytest.mark.slow
@pytest.mark.parametrize("by_hand", [False, True])
def test_what_a_collective_brought(tmp_path, capsys, by_hand):
    """Rank 1 takes a logarithm of 0: that is the first origin, and what rank 0 was sent is linked to it."""
    (tmp_path / "traces").mkdir()
    torch.multiprocessing.spawn(nonfinite_ranks.train, (str(tmp_path), by_hand), nprocs=2)
    answer = find_nonfinite(open_trace(tmp_path / "traces"))
    assert (answer.first.rank, answer.first.op, answer.first.step) == (1, "aten.log.default", 1)
    brought = [o for o in answer.origins if o.rank == 0]
    assert brought
    for origin in brought:
        assert "c10d.allreduce_" in origin.op
        assert (origin.follows.rank, origin.follows.event) == (1, answer.first.event)
        assert "; it was made on rank 1 by `aten.log.default` at nonfinite_ranks.py:" in origin.message
    out = command(capsys, "nonfinite", tmp_path / "traces")[1]
    assert "    rank 0: `c10d.allreduce_" in out
