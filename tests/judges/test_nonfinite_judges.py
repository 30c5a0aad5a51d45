"""
Judges of `dispatchmon nonfinite`: correct programs, fuzzed programs, unwritten memory. A share here, all of them by
`make test-nonfinite`; what they measured is in docs/nonfinite.md.
"""

import collections
import os
import warnings

import pytest
import torch

import nonfinite_fuzz
import nonfinite_unwritten
from dispatchmon import DispatchMonitor, NonFiniteError, open_trace
from dispatchmon.analysis.nonfinite.findings import ALARM
from nonfinite_fuzz import report, traced
from nonfinite_programs import PROGRAMS
from recorded import needs_one_detach

ALL = bool(os.environ.get("DISPATCHMON_TEST_ALL"))
FUZZ = range(500) if ALL else range(24)
UNWRITTEN = range(600) if ALL else range(40)


@pytest.fixture(autouse=True)
def _quiet():
    """Some of these programs provoke warnings of torch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize(("name", "make", "run"), PROGRAMS, ids=[name for name, _, _ in PROGRAMS])
def test_correct_programs_raise_no_alarm(name, make, run):
    """Masks, minima, caches and skipped steps are full of NaN and Inf that do no harm: nothing is reported."""
    torch.manual_seed(1)
    model = make()
    _, search = traced(model, lambda: run(model))
    assert [f for f in search.findings if f.verdict == ALARM] == []


@pytest.mark.parametrize(("name", "make", "run"), PROGRAMS, ids=[name for name, _, _ in PROGRAMS])
def test_correct_programs_are_not_stopped(name, make, run, tmp_path):
    """Nor does `on_nonfinite="raise"` raise in them."""
    torch.manual_seed(1)
    model = make()
    with DispatchMonitor(model, tmp_path / "t.arrow", on_nonfinite="raise", quiet=True) as monitor:
        run(model)
    assert monitor.error is None


@pytest.mark.slow
@needs_one_detach
@pytest.mark.parametrize("seed", FUZZ)
def test_what_is_said_while_running_is_what_the_command_says(seed, tmp_path):
    """Of the trace that ends there: the same sentence, and nothing where the command finds nothing."""
    net, *rest = nonfinite_fuzz.program(seed)
    said = None
    try:
        with DispatchMonitor(net, tmp_path / "t.arrow", on_nonfinite="raise", quiet=True):
            nonfinite_fuzz.execute(net, *rest)
    except NonFiniteError as error:
        said = str(error)
    answer = open_trace(tmp_path / "t.arrow").nonfinite()
    assert said == (None if answer.first is None else answer.first.message) or not answer.origins and answer.found


@pytest.mark.slow
@needs_one_detach
def test_fuzzed_programs():
    """Whether there is something to alarm about is always right, the first cause in at least 95 of 100 programs."""
    tally = nonfinite_fuzz.main(FUZZ.start, FUZZ.stop)
    if ALL:
        report(tally)
    assert tally["programs"] == len(FUZZ)
    assert not [key for key in tally if key[0] == "judge failed"]
    assert tally["sinks bad", "MISSED"] == tally["sinks finite", "FALSE ALARM"] == 0
    right, wrong = tally["first", "right"], tally["first", "wrong"]
    assert right >= 0.95 * (right + wrong)
    events = sum(n for key, n in tally.items() if key[0] == "event")
    assert tally["event", "right"] >= 0.998 * events


@pytest.mark.slow
def test_unwritten_memory():
    """Reads of unwritten memory that change the result are found nearly always, with the first reader mostly right."""
    tally = collections.Counter()
    for seed in UNWRITTEN:
        nonfinite_unwritten.judge(seed, tally)
    if ALL:
        report(tally)
    found, missed = tally["matters", "alarm"], tally["matters", "silent"]
    assert found >= 0.9 * (found + missed)
    assert tally["first reader", "right"] >= 0.95 * found
    assert tally["does not matter", "alarm"] <= 0.15 * (
        tally["does not matter", "silent"] + tally["does not matter", "alarm"]
    )
