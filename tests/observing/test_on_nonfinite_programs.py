"""`on_nonfinite="raise"` on whole programs: silent on those that are right, and on the others it says what `nonfinite` says."""

from __future__ import annotations

import gc

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dispatchmon import DispatchMonitor, NonFiniteError, open_trace
from dispatchmon.recording import alarm

NAN, INF = torch.nan, torch.inf
ALL_RECORDS = [("ops",), ("modules",), ("modules", "parameters"), ("ops", "modules", "parameters")]


@pytest.fixture(autouse=True)
def _no_scaler_of_another_test():
    """Whether a GradScaler lives is asked of the garbage collector."""
    gc.collect()


def train(model, loss_of, steps=4, make=torch.optim.SGD, **settings):
    """A model, and a plain loop over batches of which `loss_of` makes a loss."""
    optimizer = make(model.parameters(), lr=0.01, **settings)

    def run():
        for step in range(steps):
            optimizer.zero_grad()
            loss_of(model, step, optimizer).backward()
            optimizer.step()

    return model, run


def stopped_by(model, run, path, **settings):
    """The error that stops a program in its loop, not one that comes after it."""
    with DispatchMonitor(model, path, on_nonfinite="raise", quiet=True, **settings):
        try:
            run()
        except NonFiniteError as error:
            return error
    raise AssertionError("the program was not stopped")


# ------------------------------------------------------------------------------------------------- right
def scaled(init_scale, autocast, unscale, **settings):
    """A GradScaler that looks for its scale in the first steps."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **settings)
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale)

    def run():
        for _ in range(4):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16, enabled=autocast):
                out = model(1000 * torch.randn(8, 4))
            scaler.scale(out.float().pow(2).mean()).backward()
            if unscale:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        assert scaler.get_scale() < init_scale

    return model, run


def scaler_float16():
    return scaled(2.0**40, autocast=True, unscale=False)


def scaler_float16_clipped_fused():
    return scaled(2.0**40, autocast=True, unscale=True, fused=True)


def scaler_whose_loss_overflows():
    return scaled(2.0**127, autocast=False, unscale=False)


def scaler_whose_loss_overflows_fused():
    return scaled(2.0**127, autocast=False, unscale=True, fused=True)


def connectionist():
    """The first transcript is longer than the frames allow."""
    targets, n = torch.tensor([[1, 1, 1, 1], [1, 2, 3, 4]]), torch.tensor([4, 4])

    def loss(model, step, optimizer):
        return F.ctc_loss(model(torch.randn(4, 2, 5)).log_softmax(2), targets, n, n, zero_infinity=True)

    return train(nn.Linear(5, 6), loss)


def isolated_nodes():
    adjacency = (torch.rand(6, 6) > 0.4).float()
    adjacency[3] = 0

    def loss(model, step, optimizer):
        scale = adjacency.sum(1) ** -0.5
        scale[scale == INF] = 0
        return (scale[:, None] * adjacency * scale @ model(torch.randn(6, 4))).pow(2).mean()

    return train(nn.Linear(4, 2), loss)


def causal():
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model, run = train(layer, lambda m, s, o: m(torch.randn(2, 5, 8), src_mask=mask).pow(2).mean())

    def and_evaluate():
        run()
        with torch.no_grad():
            layer.eval()(torch.randn(2, 5, 8), src_mask=mask)

    return model, and_evaluate


def dropout():
    """Memory that is about to be written, which deterministic algorithms fill with NaN."""
    model, run = train(nn.Sequential(nn.Linear(4, 8), nn.Dropout()), lambda m, s, o: m(torch.randn(3, 4)).sum())

    def deterministic():
        torch.use_deterministic_algorithms(True)
        try:
            run()
        finally:
            torch.use_deterministic_algorithms(False)

    return model, deterministic


class Extremes(nn.Module):
    """Buffers that begin at Inf, as observers of quantization have them."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("low", torch.full((3,), INF))

    def forward(self, x):
        y = self.linear(x)
        self.low.copy_(torch.minimum(self.low, y.detach().amin(0)))
        return y


def extremes():
    return train(Extremes(), lambda m, s, o: m(torch.randn(4, 3)).pow(2).mean())


class Best(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 16)

    def forward(self, x):
        scores = self.linear(x)
        return scores.masked_fill(scores < scores.topk(3).values[..., -1:], -INF)


def sampling():
    """Logits of -Inf that are sampled from."""
    model = Best()

    @torch.no_grad()
    def run():
        for _ in range(4):
            torch.multinomial(model(torch.randn(2, 8)).softmax(-1), 1)

    return model, run


class LogOfZero(nn.Module):
    def forward(self, x):
        return x.relu().log()


def best_of_log_probabilities():
    """The logarithm of 0, of which the largest is chosen."""
    model = LogOfZero()

    @torch.no_grad()
    def run():
        for _ in range(3):
            model(torch.randn(2, 8)).argmax(-1)

    return model, run


def a_hook_that_cleans():
    """The optimizer's own hook takes NaN out of gradients before they are used."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(lambda o, *_: [p.grad.nan_to_num_(0, 0, 0) for p in model.parameters()] and None)

    def run():
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(4, 3)).pow(2).mean().backward()
            optimizer.step()

    return model, run


RIGHT = [
    scaler_float16, scaler_float16_clipped_fused, scaler_whose_loss_overflows, scaler_whose_loss_overflows_fused,
    connectionist, isolated_nodes, causal, dropout, extremes, sampling, best_of_log_probabilities, a_hook_that_cleans,
]  # fmt: skip


@pytest.mark.parametrize("record", ALL_RECORDS, ids="+".join)
@pytest.mark.parametrize("program", RIGHT, ids=lambda program: program.__name__)
def test_what_is_right_is_not_stopped(program, record, tmp_path):
    """Whatever is recorded; and the command has nothing to say either."""
    torch.manual_seed(0)
    model, run = program()
    with DispatchMonitor(model, tmp_path / "t.arrow", record=record, on_nonfinite="raise", quiet=True) as monitor:
        run()
    assert monitor.error is None
    assert not monitor.trace.nonfinite().found


# ------------------------------------------------------------------------------------------------- wrong
def nan_in_the_batch():
    """In the batch of step 2."""

    def loss(model, step, optimizer):
        x = torch.randn(4, 3).numpy()
        if step == 2:
            x[1, 1] = NAN
        return model(torch.from_numpy(x)).pow(2).mean()

    return train(nn.Linear(3, 1), loss)


def nan_in_a_parameter():
    model = nn.Linear(3, 1)
    nn.init.constant_(model.weight, NAN)
    return train(model, lambda m, s, o: m(torch.randn(4, 3)).pow(2).mean())


def nan_for_a_learning_rate():
    def loss(model, step, optimizer):
        optimizer.param_groups[0]["lr"] = NAN if step == 2 else 0.01
        return model(torch.randn(4, 3)).pow(2).mean()

    return train(nn.Linear(3, 1), loss, make=torch.optim.AdamW)


def slope_of_a_root():
    """The loss is finite, its gradient is not."""

    def loss(model, step, optimizer):
        return (model(torch.randn(4, 3)) * (step != 2)).pow(2).sqrt().sum()

    return train(nn.Linear(3, 1), loss)


def loss_of_a_masked_class():
    """-Inf reaches the loss."""

    def loss(model, step, optimizer):
        scores = model(torch.randn(2, 3)).masked_fill(torch.tensor([True, False, False, False]), -INF)
        return F.nll_loss(scores.log_softmax(-1), torch.tensor([0, 1]))

    return train(nn.Linear(3, 4), loss)


WRONG = [nan_in_the_batch, nan_in_a_parameter, nan_for_a_learning_rate, slope_of_a_root, loss_of_a_masked_class]


@pytest.mark.parametrize("record", [("ops",), ("ops", "modules", "parameters")], ids="+".join)
@pytest.mark.parametrize("program", WRONG, ids=lambda program: program.__name__)
def test_what_is_wrong_is_named_as_the_command_names_it(program, record, tmp_path):
    """In the loop, not after it; with the words that the command has for the whole run."""
    torch.manual_seed(0)
    model, run = program()
    with DispatchMonitor(model, tmp_path / "whole.arrow", quiet=True):
        run()
    torch.manual_seed(0)
    model, run = program()
    error = stopped_by(model, run, tmp_path / "t.arrow", record=record)
    whole, said = open_trace(tmp_path / "whole.arrow").nonfinite().first.message, str(error)
    again = "; the same "  # how often it comes again nobody knows yet
    assert said.partition(again)[0] == whole.partition(again)[0]


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (nan_in_the_batch, "input[0] of the model has 1 NaN"),
        (nan_in_a_parameter, "output of the model has 4 NaN"),
        (nan_for_a_learning_rate, "update of weight has 3 NaN"),
        (slope_of_a_root, "the gradient of output of the model has 4 NaN"),
    ],
)
def test_without_operators_the_place_is_named(program, words, tmp_path):
    """The first place at the borders of modules, or the parameter."""
    torch.manual_seed(0)
    model, run = program()
    record = ("modules",) if program is nan_in_a_parameter else ("modules", "parameters")
    error = stopped_by(model, run, tmp_path / "t.arrow", record=record)
    assert str(error) == words


def test_a_gradient_is_not_used(tmp_path):
    """The optimizer is stopped before it writes to the parameters."""
    model, run = slope_of_a_root()
    with DispatchMonitor(model, tmp_path / "t.arrow", on_nonfinite="raise", quiet=True), pytest.raises(NonFiniteError):
        run()
    assert all(p.isfinite().all() and not p.grad.isfinite().all() for p in model.parameters())


def test_a_result_that_nobody_reads_is_told_at_the_end(tmp_path):
    """Until then it may still be read."""
    ended = []

    def run():
        torch.tensor(-1.0).sqrt()
        ended.append(True)

    with (
        pytest.raises(NonFiniteError, match=r"^`aten\.sqrt\.default` made 1 NaN from finite inputs"),
        DispatchMonitor(None, tmp_path / "t.arrow", on_nonfinite="raise", quiet=True),
    ):
        run()
    assert ended


def test_an_exception_that_a_nan_led_to(tmp_path):
    """The block is left by it; the NaN is named, and the exception is its context."""
    with (
        pytest.raises(NonFiniteError, match=r"^`aten\._softmax\.default` made 4 NaN") as caught,
        DispatchMonitor(None, tmp_path / "t.arrow", on_nonfinite="raise", quiet=True),
    ):
        torch.multinomial(torch.full((4,), -INF).softmax(-1), 1)
    assert isinstance(caught.value.__context__, RuntimeError)


def test_another_exception_stays(tmp_path):
    """What has nothing to do with a NaN comes through, though there are some that did no harm."""

    def run():
        torch.zeros(3).log().exp().sum()
        raise KeyError

    with pytest.raises(KeyError), DispatchMonitor(None, tmp_path / "t.arrow", on_nonfinite="raise", quiet=True):
        run()


def test_a_trace_that_is_too_large_to_be_searched(tmp_path, monkeypatch):
    """Where harm is certain its place is named, and the command that finds the origin."""
    monkeypatch.setattr(alarm, "MOST_CERTAIN_BYTES", 0)
    path = tmp_path / "t.arrow"
    model, run = nan_in_the_batch()
    with DispatchMonitor(model, path, on_nonfinite="raise", quiet=True), pytest.raises(NonFiniteError) as caught:
        run()
    assert str(caught.value) == (
        f"the loss from which backward starts holds 1 NaN; where that began is found by: dispatchmon nonfinite {path}"
    )


def test_a_search_that_fails_is_no_harm(tmp_path, monkeypatch):
    """What is certain is still said, and nothing else comes out of it."""

    def broken(*_, **__):
        raise MemoryError

    monkeypatch.setattr("dispatchmon.reading.trace_files.open_files", broken)
    model, run = isolated_nodes()
    with DispatchMonitor(model, tmp_path / "a.arrow", on_nonfinite="raise", quiet=True) as monitor:
        run()
    assert monitor.error is None
    model, run = nan_in_the_batch()
    error = stopped_by(model, run, tmp_path / "b.arrow")
    assert str(error).startswith("the loss from which backward starts holds 1 NaN; ")


def test_no_search_where_nothing_may_do_harm(tmp_path, monkeypatch):
    """Masks are looked at by nobody."""
    monkeypatch.setattr(alarm.Alarm, "found", lambda *_: pytest.fail("searched"))
    model, run = causal()
    with DispatchMonitor(model, tmp_path / "t.arrow", on_nonfinite="raise", quiet=True):
        run()
