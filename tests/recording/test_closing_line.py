"""What the line that ends a recording says of NaN and Inf: what `dispatchmon nonfinite` would."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dispatchmon import DispatchMonitor, NonFiniteError, open_trace
from dispatchmon.recording import verdict


def masked():
    """A causal mask of -Inf."""
    scores = torch.randn(4, 4).masked_fill(torch.triu(torch.ones(4, 4, dtype=torch.bool), 1), -torch.inf)
    return scores.softmax(-1).sum()


def log_of_a_triangle():
    """The same mask as people also make it."""
    return (torch.randn(3, 3) + torch.log(torch.tril(torch.ones(3, 3)))).softmax(-1).sum()


def dropout():
    """Memory that `bernoulli_` is about to fill, which deterministic algorithms fill with NaN."""
    torch.use_deterministic_algorithms(True)
    try:
        return nn.Dropout()(torch.randn(64)).sum()
    finally:
        torch.use_deterministic_algorithms(False)


def connectionist():
    """The table of a CTC loss, which is made of -Inf."""
    scores = torch.randn(10, 2, 5, requires_grad=True).log_softmax(2)
    return F.ctc_loss(scores, torch.randint(1, 5, (2, 3)), torch.tensor([10, 10]), torch.tensor([3, 3]))


def line_of(program, path, capfd, **settings):
    """The closing line of a run, without its beginning."""
    with DispatchMonitor(None, path, **settings):
        loss = program()
        if loss.requires_grad:
            loss.backward()
    return re.split("in-place writes?, ", capfd.readouterr().err)[1].strip()


@pytest.mark.parametrize("program", [masked, log_of_a_triangle, dropout, connectionist])
def test_what_did_no_harm_is_not_spoken_of(program, tmp_path, capfd):
    """No place is named, and the next command is not `nonfinite`, which would exit 0."""
    line = line_of(program, tmp_path / "t.arrow", capfd)
    assert re.fullmatch(r"(no NaN or Inf|no NaN or Inf that did harm)\. Next: dispatchmon summarize \S+", line), line
    assert not open_trace(tmp_path / "t.arrow").nonfinite().found


def test_an_origin_is_named_where_the_search_finds_it(tmp_path, capfd):
    """Not where a NaN or Inf was seen first: that is a mask."""

    def program():
        return masked() + torch.zeros(1, requires_grad=True).sqrt().log().sum()

    line = line_of(program, tmp_path / "t.arrow", capfd)
    assert line.startswith("first Inf in aten.log.default, step 0. Next: dispatchmon nonfinite ")


def test_memory_that_was_read_before_it_was_written(tmp_path, capfd):
    """There is no origin, and yet something to say."""

    def program():
        torch.use_deterministic_algorithms(True)
        try:
            x = torch.empty(4, 4)
            x[:1] = 1.0
            return x.sum()
        finally:
            torch.use_deterministic_algorithms(False)

    line = line_of(program, tmp_path / "t.arrow", capfd)
    assert line.startswith("unwritten memory of aten.empty.memory_format was read in aten.sum.default, step 0. Next: ")


def test_a_large_trace_is_not_searched(tmp_path, capfd, monkeypatch):
    """The program does not wait for long; nothing is claimed."""
    monkeypatch.setattr(verdict, "MOST_BYTES", 0)
    line = line_of(masked, tmp_path / "t.arrow", capfd)
    assert line.startswith("NaN or Inf that was not judged here. Next: dispatchmon nonfinite ")


def test_a_search_that_fails_is_no_harm(tmp_path, capfd, monkeypatch):
    """Nor does the training end with it."""

    def broken(*_):
        raise MemoryError

    monkeypatch.setattr("dispatchmon.reading.trace_files.open_files", broken)
    assert line_of(masked, tmp_path / "t.arrow", capfd).startswith("NaN or Inf that was not judged here.")


def test_of_modules_alone_it_is_what_was_measured(tmp_path, capfd):
    """Where no operator is recorded nothing can be followed, and `nonfinite` would find nothing."""
    model = nn.Linear(1, 1)
    with DispatchMonitor(model, tmp_path / "t.arrow", record=("modules",)):
        model(torch.tensor([[torch.nan]]))
    assert ", NaN first seen in Linear, step 0. Next: dispatchmon summarize " in capfd.readouterr().err


@pytest.mark.parametrize("needs_gradients", [True, False])
def test_the_table_of_a_ctc_loss_is_not_spoken_of(needs_gradients, tmp_path, capfd):
    """It is scratch memory of the kernel: not measured, no mask, no note, and its -Inf stop nothing."""

    def program():
        scores = torch.randn(10, 2, 5, requires_grad=needs_gradients).log_softmax(2)
        return F.ctc_loss(scores, torch.randint(1, 5, (2, 3)), torch.tensor([10, 6]), torch.tensor([3, 2]))

    line = line_of(program, tmp_path / "t.arrow", capfd, on_nonfinite="raise")
    assert line.startswith("no NaN or Inf. Next: dispatchmon summarize ")
    trace = open_trace(tmp_path / "t.arrow")
    answer = trace.nonfinite()
    assert (trace.warnings, answer.found, answer.notes, answer.deliberate) == ((), False, (), ())
    tables = trace.sql("SELECT min, max, nan, inf FROM trace WHERE op LIKE 'aten._ctc_loss%' AND arg IN ('out1', 'log_alpha')")
    assert tables.num_rows == 1 + needs_gradients
    assert {value for row in tables.to_pylist() for value in row.values()} == {None}
    assert trace.summarize().stands_out.largest.magnitude < 100


def test_a_transcript_that_does_not_fit_is_spoken_of(tmp_path, capfd):
    """The loss itself is +Inf."""

    def program():
        scores = torch.randn(3, 1, 5, requires_grad=True).log_softmax(2)
        return F.ctc_loss(scores, torch.tensor([[1, 1, 1]]), torch.tensor([3]), torch.tensor([3]))

    line = line_of(program, tmp_path / "t.arrow", capfd)
    assert line.startswith("first Inf in aten._ctc_loss.Tensor, step 0. Next: dispatchmon nonfinite ")


def test_unwritten_memory_of_ordinary_numbers(tmp_path, capfd):
    """No NaN and no Inf anywhere, and yet `nonfinite` exits 2: so does the line say it, and `on_nonfinite` raises."""

    def program():
        torch.full((4,), 3.0)
        return torch.empty(0).resize_(4).fill_(1.0).resize_(8)[:6].zero_().new_empty(4)[1:].add(1).sum()

    line = line_of(program, tmp_path / "t.arrow", capfd)
    assert line.startswith("unwritten memory of aten.new_empty.default was read in aten.add.Tensor, step 0. Next: ")
    with pytest.raises(NonFiniteError, match="new_empty"), DispatchMonitor(
        None, tmp_path / "r.arrow", on_nonfinite="raise", quiet=True
    ):
        program()
