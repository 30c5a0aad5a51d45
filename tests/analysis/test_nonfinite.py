"""Where a NaN or Inf was born, in small programs whose answer is worked out by hand."""

import copy
import json

import pytest
import torch
import torch.nn as nn

from command_line import run as command
from dispatchmon import DispatchMonitor, open_trace
from dispatchmon.analysis.nonfinite import find_nonfinite
from dispatchmon.reading.query import Filters
from trace_factory import write_trace

INF, NAN = float("inf"), float("nan")


@pytest.fixture
def path(tmp_path):
    """Where the trace of a test goes."""
    return tmp_path / "trace.arrow"


def found(run, path, model=None, **settings):
    """The answer about what `run` did."""
    with DispatchMonitor(model, path, quiet=True, **settings) as monitor:
        run()
    assert monitor.error is None
    return find_nonfinite(open_trace(path))


class One(nn.Module):
    """A parameter, and what is done with it."""

    def __init__(self, values, use, dtype=torch.float32):
        super().__init__()
        self.w, self.use = nn.Parameter(torch.tensor(values, dtype=dtype)), use

    def forward(self):
        return self.use(self.w)


def backward_of(values, use, path):
    """The answer about a backward pass of `use`."""
    model = One(values, use)
    return found(lambda: model().sum().backward(), path, model)


# ------------------------------------------------------------------------------------------------- origins
def test_forward(path):
    """A logarithm of zero: operator, numbers, and the loss that it reached."""
    answer = backward_of([1.0, 0.0, 0.0], torch.log, path)
    first = answer.first
    assert (first.op, first.module, first.phase, first.kind, first.what) == (
        "aten.log.default",
        "",
        "forward",
        "made",
        "inf",
    )
    assert "made 2 -Inf of 3 elements from finite inputs (min 0, max 1)" in first.message
    assert first.inputs_finite
    assert (first.inputs[0].name, first.inputs[0].zero) == ("w", 2)
    assert first.spread["loss"].op == "aten.sum.default"
    assert first.cause == ()


def test_backward_of_the_branch_that_was_not_taken(path):
    """`where` hides the square root of 0 from the loss, and its backward multiplies 0 by the infinite slope."""
    answer = backward_of([4.0, 0.0], lambda w: torch.where(w > 0, w.sqrt(), w), path)
    first = answer.first
    assert (first.op, first.phase, first.forward.op) == ("aten.div.Tensor", "backward", "aten.sqrt.default")
    assert "whose input was 0 in 1 place" in first.message
    assert "gradient" in first.spread


def test_backward_of_the_norm_of_a_zero_vector(path):
    """The gradient of a norm is x / |x|: 0 / 0."""
    answer = backward_of([0.0, 0.0], lambda w: w / torch.sqrt((w * w).sum()), path)
    assert (answer.first.op, answer.first.phase) == ("aten.div.Tensor", "forward")
    answer = backward_of([1.0, 1.0], lambda w: (w * torch.acos(w)).sum(), path.with_name("acos.arrow"))
    assert (answer.first.phase, answer.first.forward.op) == ("backward", "aten.acos.default")


def test_backward_of_an_overflow_in_the_branch_that_was_not_taken(path):
    """exp(200) is Inf where nobody looks, and 0 * Inf in backward is NaN: the cause is the overflow in forward."""
    answer = backward_of([1.0, 200.0], lambda w: torch.where(w < 100, w.exp(), w), path)
    origin = next(o for o in answer.origins if o.what == "nan")
    assert (origin.op, origin.phase, origin.kind) == ("aten.mul.Tensor", "backward", "turned")
    assert origin.cause[-1].op == "aten.exp.default"
    assert answer.first.op == "aten.exp.default"


def test_the_batch_was_not_finite(path):
    """NaN in the input is reported as what it is: there before anything ran."""
    model = nn.Linear(2, 1)
    answer = found(lambda: model(torch.tensor([[1.0, NAN]])).sum().backward(), path, model)
    assert (answer.first.kind, answer.first.inputs_finite) == ("external", False)
    assert answer.first.message.startswith("1 NaN of 2 elements were already in `mat1` when `aten.addmm.default` ")
    assert "parameter" not in answer.first.spread


def test_a_parameter_was_not_finite(path):
    """A loaded parameter is called by its name."""
    model = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        model.weight[0, 0] = NAN
    answer = found(lambda: model(torch.ones(1, 2)).sum().backward(), path, model)
    assert answer.first.message.startswith("1 NaN of 4 elements were already in `weight` when ")


def test_a_constant_that_reached_the_loss(path):
    """A mask over the right answer is deliberate, and an Inf in the loss is not."""
    model = nn.Linear(2, 3)

    def run():
        logits = model(torch.ones(1, 2)).masked_fill(torch.tensor([True, False, False]), -INF)
        nn.functional.cross_entropy(logits, torch.tensor([0])).backward()

    answer = found(run, path, model)
    assert (answer.first.kind, answer.first.op) == ("deliberate", "aten.masked_fill.Scalar")
    assert "loss" in answer.first.spread


def test_half_precision_overflow_and_how_it_grew(path):
    """65504 is the largest float16: the chain shows the squares before the one that was too large."""

    def grow():
        x = torch.full((4,), 3.0, dtype=torch.float16)
        for _ in range(4):
            x = x * x
        return x

    answer = found(grow, path)
    assert answer.first.what == "inf"
    assert "made 4 +Inf of 4 elements in float16 from finite inputs (min 6560, max 6560)" in answer.first.message
    assert [link.message.split(" at ")[0] for link in answer.first.growth] == [
        "`aten.mul.Tensor` made values up to 6560",
        "`aten.mul.Tensor` made values up to 81",
    ]


def test_underflow_is_a_note(path):
    """What becomes zero in a cast to half precision is no alarm, and worth a line."""
    answer = found(lambda: torch.tensor([1.0, 1e-9, 1e-10]).half(), path)
    assert answer.origins == ()
    assert [(n.kind, n.message.split(" in `")[0]) for n in answer.notes] == [
        ("underflow", "2 of 3 elements became 0 in float16")
    ]


def test_adam_in_half_precision(path):
    """Adam's epsilon is 0 in float16, and a gradient whose square underflows divides by it."""
    model = One([1.0], lambda w: w * 1e-4, torch.float16)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, foreach=False)

    def run():
        model().sum().backward()
        optimizer.step()

    answer = found(run, path, model)
    assert (answer.first.phase, answer.first.spread["parameter"].name) == ("optimizer", "w")


def test_a_poisoned_moment_comes_back(path):
    """One bad batch puts NaN into Adam's moments; the next step's parameters show it."""
    model = One([1.0, 2.0], lambda w: w.sum())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)

    def run():
        for scale in (1.0, NAN, 1.0):
            optimizer.zero_grad()
            (model() * scale).backward()
            optimizer.step()

    answer = found(run, path, model)
    assert (answer.first.step, answer.first.kind) == (1, "deliberate")
    assert answer.first.spread["parameter"].step == 1


# ------------------------------------------------------------------------------------------------- no alarm
def scaled_training(scale, steps, values=(1.0, 2.0)):
    """Training with a GradScaler."""
    model = One(list(values), lambda w: (w.half() * 100).float().sum())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)

    def run():
        for _ in range(steps):
            optimizer.zero_grad()
            scaler.scale(model()).backward()
            scaler.step(optimizer)
            scaler.update()

    return model, run


def test_skipped_steps_of_a_scaler_are_a_note(path):
    """Overflows while the scale is found are how it works: no alarm, one line."""
    model, run = scaled_training(2.0**14, 8)
    answer = found(run, path, model)
    assert answer.origins == ()
    note = next(n for n in answer.notes if n.kind == "skipped-steps")
    assert note.message.startswith("GradScaler skipped 5 of 8 steps on purpose")


def test_a_scale_that_collapses_is_an_alarm(path):
    """A gradient that overflows at any scale: the scale goes below 1, and that is no way to train."""
    model = One([1.0], lambda w: torch.sqrt((w - 1).half()).float().sum())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

    def run():
        for _ in range(6):
            optimizer.zero_grad()
            scaler.scale(model()).backward()
            scaler.step(optimizer)
            scaler.update()

    assert found(run, path, model).first.op == "aten.div.Tensor"


def test_cleared(path):
    """NaN that `nan_to_num` takes away again is a note that names both."""
    answer = found(lambda: torch.tensor([-1.0, 1.0]).log().nan_to_num() + 1, path)
    assert answer.origins == ()
    (note,) = answer.notes
    assert note.kind == "cleared"
    assert "`aten.log.default` made 1 NaN" in note.message
    assert "`aten.nan_to_num.default` cleared it" in note.message


def asking_training(model, question, bad_steps, went_on=True):
    """SGD that asks of each loss whether it is finite, and skips the step if not; the step that is bad is 0 / 0."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(4):
        optimizer.zero_grad()
        loss = model().sum() * (torch.zeros(()) / torch.zeros(()) if step in bad_steps else 1.0)
        if question(loss):
            if went_on:
                continue
            break
        loss.backward()
        optimizer.step()


QUESTIONS = [
    lambda x: not torch.isfinite(x),
    lambda x: x.isnan().any(),
    lambda x: torch.isinf(x) | torch.isnan(x),
    lambda x: bool(x != x),
]


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_loss_that_the_program_asked_about_and_skipped(question, path):
    """It was told, and went on training without it: a note, not an alarm."""
    model = One([1.0, 2.0], lambda w: w * 2)
    answer = found(lambda: asking_training(model, question, [1]), path, model, on_nonfinite="raise")
    assert not answer.found
    assert answer.notes
    assert all(note.message.endswith("asked whether it is finite, and went on training without it") for note in answer.notes)


def test_a_program_that_asks_and_gives_up_is_told_where_it_began(path):
    """Nothing was trained after the question: whoever stops because of a NaN wants to know."""
    model = One([1.0, 2.0], lambda w: w * 2)
    answer = found(lambda: asking_training(model, QUESTIONS[0], [1], went_on=False), path, model)
    assert answer.first.op == "aten.div.Tensor"


def test_a_program_that_asks_and_trains_on_it_all_the_same(path):
    """The question alone excuses nothing."""
    model = One([1.0, 2.0], lambda w: w * 2)

    def ask(loss):
        bool(loss.isnan())
        return False

    answer = found(lambda: asking_training(model, ask, [1]), path, model)
    assert answer.first.op == "aten.div.Tensor"
    assert "loss" in answer.first.spread


def test_what_nobody_asked_about_is_an_end(path):
    """The question is about one value, and another one that is read by nobody holds a NaN of its own."""
    model = One([1.0, 2.0], lambda w: w * 2)
    kept = []

    def ask(loss):
        kept.append(loss.detach() * 0.5)
        return not loss.isfinite()

    answer = found(lambda: asking_training(model, ask, [1]), path, model)
    assert "end" in answer.first.spread


@pytest.mark.parametrize("deterministic", [False, True])
def test_fresh_memory_is_no_origin(path, deterministic):
    """Deterministic algorithms fill fresh memory with NaN; what is written over before it is read is nobody's business."""

    def run():
        x = torch.empty(4, 4)
        x[:2] = 1.0
        x[2:] = 2.0
        return x.sum()

    torch.use_deterministic_algorithms(deterministic)
    try:
        answer = found(run, path)
    finally:
        torch.use_deterministic_algorithms(False)
    assert (answer.origins, answer.uninitialised) == ((), ())


def test_unwritten_memory_that_is_read(path):
    """With its allocator, its first reader, and how much had been written."""

    def run():
        x = torch.empty(4, 4)
        x[:1] = 1.0
        return x.sum()

    torch.use_deterministic_algorithms(True)
    try:
        answer = found(run, path)
    finally:
        torch.use_deterministic_algorithms(False)
    (unwritten,) = answer.uninitialised
    assert (unwritten.op, unwritten.reader.op) == ("aten.empty.memory_format", "aten.sum.default")
    assert (unwritten.written, unwritten.matters) == (0.25, True)
    assert answer.origins == ()
    assert answer.found


# ------------------------------------------------------------------------------------------------- sizes
def test_a_copy_is_given_other_memory(path):
    """`copy.deepcopy` makes an empty tensor and sets a copied storage into it: nobody reads what was empty."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    with DispatchMonitor(model, path, quiet=True):
        batch, best, average = copy.deepcopy(torch.ones(8, 4)), copy.deepcopy(model.state_dict()), copy.deepcopy(model)
        (model(batch).sum() + average(batch).sum() + best["0.weight"].sum()).backward()
    answer = find_nonfinite(open_trace(path))
    assert (answer.origins, answer.uninitialised) == ((), ())


def rotated():
    """Rotary positions: complex numbers fill an empty buffer of real ones, all of it, and are read as real ones."""
    buffer = torch.empty(4, 6, 2)
    torch.view_as_complex(buffer).copy_(torch.polar(torch.ones(4, 6), torch.arange(24.0).view(4, 6)))
    return (buffer * 2).sum()


def half_rotated():
    """The same, but of half of the pairs."""
    buffer = torch.empty(4, 6, 2)
    torch.view_as_complex(buffer)[:, :3].copy_(torch.polar(torch.ones(4, 3), torch.arange(12.0).view(4, 3)))
    return (buffer * 2).sum()


def test_memory_is_one_whatever_size_its_elements_are_seen_with(path):
    """A complex number is two real ones in the same memory."""
    torch.use_deterministic_algorithms(True)  # what is empty is NaN
    try:
        assert not found(rotated, path).found
        (unwritten,) = found(half_rotated, path.with_name("half.arrow")).uninitialised
    finally:
        torch.use_deterministic_algorithms(False)
    assert (unwritten.op, unwritten.written) == ("aten.empty.memory_format", 0.5)


def test_a_nan_is_followed_through_complex_numbers(path):
    """It was born in a real tensor, and reached the loss as part of a complex one: one origin, no other."""
    weight = torch.tensor([[0.0, 1.0], [1.0, 1.0]], requires_grad=True)

    def run():
        root = weight.detach().sub(1.0).clamp(max=0).sqrt()  # the square root of -1
        turned = torch.view_as_complex(root) * torch.polar(torch.ones(2), torch.ones(2))
        return torch.view_as_real(turned).sum()

    answer = found(run, path)
    assert [(o.op, o.what) for o in answer.origins] == [("aten.sqrt.default", "nan")]


def test_what_a_write_finds_is_not_the_largest_magnitude(path):
    """It may be memory that nobody has written; if it is not, it was shown where it was made."""
    found = {"event": 0, "written": True, "role": "input", "op": "aten.fill_.Scalar", "min": -1e30, "max": 0.0}
    rows = [found, {**found, "role": "output", "min": 2.0, "max": 2.0}]
    assert find_nonfinite(open_trace(write_trace(path, rows))).largest.magnitude == 2.0


@pytest.mark.parametrize("n", [8, 64, 300, 1100])
def test_two_origins_in_one_value(path, n):
    """However coarse the map, a second origin elsewhere in a value that is spoiled already is found."""

    def run():
        x = torch.ones(n, n)
        x[0, 0] = 0.0
        y = x.log() * -1
        z = torch.ones(n, n)
        z[-1, -1] = -1.0
        return (1 / y.neg().add(1).clamp(max=1) + z.sqrt()).sum()

    ops = [o.op for o in found(run, path).origins]
    assert ops[-1] == "aten.sqrt.default"


def test_only_one_of_two_reaches_the_result(path):
    """Two rows are spoiled by different operators; the result has one of them, and only its maker is an origin."""

    def run():
        a = torch.tensor([[0.0, 1.0], [1.0, 1.0]]).log()
        b = torch.tensor([[1.0, 1.0], [-1.0, 1.0]]).sqrt()
        return (a + b)[1].sum()

    answer = found(run, path)
    assert [o.op for o in answer.origins] == ["aten.sqrt.default"]
    assert answer.first.spread["end"].op == "aten.sum.default"


def test_a_product_spreads_along_rows(path):
    """Row 0 of the left factor and column 1 of the right one: an element elsewhere was made by the product itself."""

    def run():
        a = torch.tensor([[-1.0, 1.0], [3e38, 3e38]]).log().exp()
        a[1] = 3e38
        return a @ torch.tensor([[1.0, 1.0], [1.0, 1.0]])

    ops = {(o.op, o.what) for o in found(run, path).origins}
    assert ("aten.log.default", "nan") in ops
    assert ("aten.mm.default", "inf") in ops


# ------------------------------------------------------------------------------------------------- the command
def test_nothing_was_found(path, capsys):
    """A clean trace: one line with the largest magnitude and where, and status 0."""
    found(lambda: torch.tensor([1.0, -41.25]).mul(1), path)
    assert command(capsys, "nonfinite", path) == (
        0,
        "No NaN or Inf was seen; the largest magnitude is 41.25 in float32 (aten.lift_fresh.default outside every module, step 0).\n",
        "",
    )


def test_only_masks_were_found(path, capsys):
    """Constants that did no harm are counted, and are no alarm."""
    found(lambda: torch.zeros(2, 2).masked_fill(torch.eye(2).bool(), -INF).softmax(-1).add(1).sum(), path)
    status, out, _ = command(capsys, "nonfinite", path)
    assert status == 0
    assert out.startswith("No NaN or Inf to worry about: 1 operator call filled it in on purpose, as masks do")


def test_an_origin_was_found(path, capsys):
    """The sentence, then the chain, then where it went; status 2."""
    model = One([1.0, 200.0], lambda w: torch.where(w < 100, w.exp(), w))
    found(lambda: model().sum().backward(), path, model)
    status, out, _ = command(capsys, "nonfinite", path)
    lines = out.splitlines()
    assert status == 2
    assert lines[0].startswith(
        "`aten.exp.default` in the model itself made 1 +Inf of 2 elements from finite inputs (min 1, max 200)"
    )
    assert lines[1] == "  went on to:"
    assert lines[2].startswith("    the gradient w.grad: aten.add.Tensor in the model itself at test_nonfinite.py:")
    assert lines[4] == "Another origin:"


def test_formats(path, capsys):
    """JSON has everything, ndjson and csv a line per origin; their keys are those of the documents."""
    found(lambda: torch.tensor([0.0, 1.0]).log().sum(), path)
    document = json.loads(command(capsys, "nonfinite", path, "--format", "json")[1])
    assert set(document) == {
        "format", "first", "origins", "deliberate", "vanished", "uninitialised", "notes", "largest", "tensors", "unmeasured", "warnings"}  # fmt: skip
    keys = ["event", "rank", "step", "phase", "op", "module", "source", "kind", "what", "inputs_finite", "message", "inputs",
            "outputs", "forward", "cause", "growth", "spread", "count", "total", "follows"]  # fmt: skip
    assert list(document["first"]) == keys
    assert document["origins"] == [document["first"]]
    assert list(json.loads(command(capsys, "nonfinite", path, "--format", "ndjson")[1])) == keys
    assert command(capsys, "nonfinite", path, "--format", "csv")[1].splitlines()[0] == ",".join(keys)
    assert command(capsys, "nonfinite", path, "--format", "markdown")[1].splitlines()[0].startswith("| step | phase ")


def test_filters_choose_findings(path):
    """`--step 1:` asks for what began there; where it came from is followed all the same."""
    found(lambda: [torch.tensor(-1.0).log(), torch.tensor(-1.0).sqrt()], path)
    trace = open_trace(path)
    assert [o.op for o in find_nonfinite(trace, Filters(ops=("*sqrt*",))).origins] == ["aten.sqrt.default"]
    assert find_nonfinite(trace, Filters(steps=(1, None))).origins == ()


def test_ranks_are_merged(tmp_path):
    """Each rank is followed by itself; the earliest step comes first."""
    row = {"op": "aten.log.default", "storage": 1, "version": 0, "shape": [2], "stride": [1], "offset": 0, "numel": 2}
    finite = row | {"min": 0.0, "max": 1.0, "nan": 0, "inf": 0, "posinf": 0, "arg": "self"}
    spoiled = row | {
        "event": 0,
        "arguments": None,
        "role": "output",
        "arg": "out0",
        "storage": 2,
        "min": 0.0,
        "max": 0.0,
    }
    for rank, step in ((0, 4), (1, 3)):
        rows = [{**finite, "event": 0}, {**spoiled, "nan": 0, "inf": 1, "posinf": 0}]
        rows = [{**r, "rank": rank, "step": step} for r in rows]
        write_trace(tmp_path / f"trace.rank{rank}.arrow", rows, metadata={"rank": rank, "world_size": 2})
    answer = find_nonfinite(open_trace(tmp_path))
    assert [(o.rank, o.step) for o in answer.origins] == [(1, 3), (0, 4)]


def test_a_trace_without_counts_says_so(path, capsys):
    """Without the statistics nan and inf nothing is claimed."""
    found(lambda: torch.tensor(-1.0).log(), path, stats=("min", "max"))
    status, out, _ = command(capsys, "nonfinite", path)
    assert (status, out) == (
        0,
        "NaN and Inf were not counted in this trace; record it with the statistics nan and inf.\n",
    )


def test_a_trace_without_maps_is_read_by_its_counts(tmp_path):
    """An older trace has no `cells`: more NaN than the input explains were made here."""
    place = {"shape": [4], "stride": [1], "offset": 0, "numel": 4, "posinf": 0, "inf": 0, "version": 0}
    rows = [
        {**place, "event": 0, "op": "aten.sqrt.default", "storage": 1, "nan": 1, "min": -1.0, "max": 1.0},
        {
            **place,
            "event": 0,
            "op": "aten.sqrt.default",
            "storage": 2,
            "nan": 3,
            "role": "output",
            "arg": "out0",
            "arguments": None,
        },
    ]
    answer = find_nonfinite(open_trace(write_trace(tmp_path / "t.arrow", rows)))
    assert {o.kind for o in answer.origins} == {"external", "made"}
