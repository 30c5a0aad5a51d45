"""`on_nonfinite`: the operator is named once its NaN or Inf does harm, and nothing else changes."""

import traceback
import warnings

import pytest
import torch
import torch.nn as nn

from dispatchmon import DispatchMonitor, NonFiniteError, SettingError, open_trace
from dispatchmon.analysis.nonfinite import find_nonfinite


class Root(nn.Module):
    def forward(self, x):
        return torch.sqrt(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0, 0.0]))
        self.root = Root()

    def forward(self, x):
        return self.root(self.w * x).sum()


def watched(run, path, reaction="raise", model=None):
    """Run under a monitor that reacts; the exception, if there was one."""
    try:
        with DispatchMonitor(model, path, quiet=True, on_nonfinite=reaction) as monitor:
            run()
    except NonFiniteError as error:
        assert monitor.error is None
        return error
    return None


def test_raise_names_the_operator_and_its_line(tmp_path):
    """The message is one sentence; of a value that nobody went on with it comes when the block ends."""
    error = watched(lambda: torch.tensor([1.0, 0.0]).log(), tmp_path / "t.arrow")
    line = test_raise_names_the_operator_and_its_line.__code__.co_firstlineno + 2
    assert str(error) == (
        f"`aten.log.default` made 1 -Inf of 2 elements from finite inputs (min 0, max 1) "
        f"at test_nonfinite_while_running.py:{line}, step 0, forward"
    )


def test_the_traceback_leads_to_where_the_harm_begins(tmp_path):
    """A loss that is NaN: the operator is named when backward starts from it."""

    def lose():
        torch.tensor([-1.0], requires_grad=True).log().sum().backward()

    error = watched(lose, tmp_path / "t.arrow")
    assert str(error).startswith("`aten.log.default` made 1 NaN from finite inputs (min -1, max -1) at ")
    frames = traceback.extract_tb(error.__traceback__)
    assert next(frame.line for frame in frames if frame.name == "lose").endswith(".backward()")


def test_raise_in_backward_names_the_forward_line(tmp_path):
    """The gradient of a square root at 0: the sentence says whose gradient it is, and where that ran."""
    model = Net()
    error = watched(lambda: model(torch.ones(2)).backward(), tmp_path / "t.arrow", model=model)
    line = Root.forward.__code__.co_firstlineno + 1
    assert str(error) == (
        f"`aten.div.Tensor` in `root` made 1 +Inf of 2 elements from finite inputs, by dividing by 0 in 1 place "
        f"(numerator min 1, max 1; divisor min 0, max 2) at "
        f"test_nonfinite_while_running.py:{line}, step 0, backward; it is the gradient of `aten.sqrt.default` in `root` at "
        f"test_nonfinite_while_running.py:{line}, whose input was 0 in 1 place"
    )


def test_the_trace_ends_with_the_operator(tmp_path):
    """What raised is in the trace, and the command says the same of it."""
    error = watched(lambda: torch.tensor([1.0, 0.0]).log(), tmp_path / "t.arrow")
    assert find_nonfinite(open_trace(tmp_path / "t.arrow")).first.message == str(error)


def test_nan_out_of_inf_raises(tmp_path):
    """A softmax over a row that is masked everywhere: the mask is deliberate, the NaN is not."""
    error = watched(lambda: torch.full((1, 3), -torch.inf).softmax(-1), tmp_path / "t.arrow")
    assert str(error).startswith("`aten._softmax.default` made 3 NaN of 3 elements from inputs that held 3 -Inf at ")


@pytest.mark.parametrize(
    "run",
    [
        lambda: torch.full((3,), -torch.inf).exp(),
        lambda: torch.zeros(2, 2).masked_fill(torch.eye(2).bool(), -torch.inf).softmax(-1),
        lambda: torch.empty(4).fill_(1.0),
        lambda: torch.tensor([torch.nan, 1.0]).nan_to_num(),
        lambda: torch.zeros(2).add_(torch.inf),
    ],
)
def test_what_is_meant_does_not_raise(run, tmp_path):
    """Constants, masks and memory that is not written yet are no accident, and what only passes on is not made here."""
    assert watched(run, tmp_path / "t.arrow") is None


def test_overflow_under_a_scaler_does_not_raise(tmp_path):
    """A gradient that overflows while GradScaler looks for its scale is how it works."""
    model = nn.Linear(4, 4)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def run():
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(torch.ones(2, 4)).float().pow(2).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    assert watched(run, tmp_path / "t.arrow", model=model) is None
    assert scaler.get_scale() < 2.0**40


def test_warn_warns_once(tmp_path):
    """Of three operators that make NaN the first is named, and the program goes on."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        watched(lambda: [torch.tensor(-1.0).log() for _ in range(3)], tmp_path / "t.arrow", "warn")
    assert [w.category for w in caught] == [RuntimeWarning]
    assert str(caught[0].message).startswith(
        "dispatchmon: `aten.log.default` made 1 NaN from finite inputs (min -1, max -1) at "
    )


def test_neither_changes_the_run(tmp_path):
    """With `warn` every bit of every gradient is that of a run without a monitor."""

    def train():
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2)).backward()
            optimizer.step()
        return [p.detach().view(torch.int32).tolist() for p in model.parameters()] + [torch.rand(2).tolist()]

    plain, seen = train(), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        watched(lambda: seen.append(train()), tmp_path / "t.arrow", "warn")
    assert seen == [plain]


def test_it_needs_statistics():
    """Without statistics nothing can be noticed, which is said at once."""
    with pytest.raises(SettingError, match="on_nonfinite is 'raise', but stats is empty"):
        DispatchMonitor(stats=(), on_nonfinite="raise")
    with pytest.raises(SettingError, match="'explode' is not known"):
        DispatchMonitor(on_nonfinite="explode")


def test_inside_a_custom_operator(tmp_path):
    """The custom operator is named, not what it calls."""

    @torch.library.custom_op("dispatchmon_test::rooted", mutates_args=())
    def rooted(x: torch.Tensor) -> torch.Tensor:
        return x.sqrt() + 0

    error = watched(lambda: rooted(torch.tensor([-1.0])), tmp_path / "t.arrow")
    assert str(error).startswith("`dispatchmon_test.rooted.default` made 1 NaN from finite inputs")
