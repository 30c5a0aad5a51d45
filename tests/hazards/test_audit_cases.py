"""Every shared case of a write in place, by its own right answer."""

from __future__ import annotations

import re

import pytest
import torch

from audited import NEEDS_SAVINGS, audited
from recorded import record
from reported import code_of, load_case

pytestmark = NEEDS_SAVINGS

SAVED = {"inplace-after-save": "write-after-save"}
TAKEN = {
    "caller-tensor-overwritten": "input-overwritten",
    "parameter-overwritten": "parameter-write",
    "internal-overlap-write": "overlapping-write",
    "out-aliases-input": "overlapping-write",
}


def run_case(number, **settings):
    """The case, and what the audit says of it."""
    path, case = load_case(number)
    torch.manual_seed(0)
    model, run = case.build()
    outcome = audited(lambda: run(model), model, **settings)
    raises = case.EXPECT.get("raises")
    assert bool(raises) == (outcome.error is not None)
    if raises:
        assert re.search(raises, str(outcome.error))
    return path, case.EXPECT, outcome


def assert_write(path, finding, want):
    """The write is that of EXPECT."""
    assert finding.op == want["op"]
    assert finding.module == want["module"]
    assert finding.phase == want["phase"]
    assert re.search(want["line"], code_of(path, finding.source))


@pytest.mark.parametrize("number", [1, 3, 5, 7, 9, 11, 13, 45])
def test_a_saved_value_was_overwritten(number):
    """The writer and the victim are named; loud exactly if torch raised, and then its words are quoted first."""
    path, want, outcome = run_case(number)
    first = outcome.audit.findings[0]
    assert (first.kind, first.severity) == ("write-after-save", "error")
    assert_write(path, first, want)
    assert (first.victim.op, first.victim.module) == (want["victim_op"], want["victim_module"])
    assert first.raises == first.explains == (outcome.error is not None)
    if outcome.error is not None:
        assert str(outcome.error).split(" Hint")[0].rstrip(".") in first.message
    if number == 7:
        assert "none of the saved ones" in first.message
    if "target" in want:
        assert first.name in want["target"]
    loud = [f for f in outcome.hazards if f.kind == "write-after-save"]
    assert all(f.raises == (outcome.error is not None) for f in loud)


@pytest.mark.parametrize("number", [47, 49, 53, 55, 69])
def test_a_write_took_something(number):
    """One warning, of the right kind, for the right write."""
    path, want, outcome = run_case(number)
    (finding,) = outcome.hazards
    assert (finding.kind, finding.severity) == (TAKEN[want["kind"]], "warning")
    assert_write(path, finding, want)
    assert finding.count == want.get("times", 1)
    if "dtype" in want:
        assert finding.dtype == want["dtype"].removeprefix("torch.")


def test_a_write_is_refused_before_it_is_dispatched():
    """Case 15: the mode never sees `mul_`; the exception, its line and the call it left tell."""
    path, want, outcome = run_case(15)
    (finding,) = outcome.hazards
    assert (finding.kind, finding.severity, finding.module) == ("blocked-write", "error", want["module"])
    assert re.search(want["line"], code_of(path, finding.source))
    assert "is a view and is being modified inplace" in finding.message
    assert want["blocked_op"].startswith(finding.op)


def test_a_write_outside_the_dispatcher_is_found_by_its_bytes():
    """Case 17: numpy overwrites what exp saved; with `verify_values` the victim is named."""
    _, want, outcome = run_case(17, verify_values=True)
    (finding,) = outcome.hazards
    assert (finding.kind, finding.severity) == ("undeclared-write", "error")
    assert (finding.victim.op, finding.victim.module) == (want["victim_op"], want["victim_module"])


def test_a_custom_operator_that_lies():
    """Case 51: the undeclared write is an error, and so is what it destroyed."""
    path, want, outcome = run_case(51)
    saved, lie = outcome.hazards
    assert (saved.kind, saved.explains, lie.kind, lie.arg) == ("write-after-save", True, "undeclared-write", "x")
    assert_write(path, saved, want)
    assert_write(path, lie, want)
    assert saved.victim.op == want["victim_op"]


def test_running_statistics_are_known_to_be_written():
    """Case 65: torch's own lying schemas are a note, not an error."""
    _, want, outcome = run_case(65)
    assert outcome.hazards == ()
    (note,) = [f for f in outcome.audit.findings if f.kind == "undeclared-write"]
    assert (note.op, note.module, note.count, note.arg) == (want["op"], want["module"], want["times"], want["argument"])


@pytest.mark.parametrize("number", [19, 21])
def test_an_inplace_module_on_a_fresh_value_is_no_hazard(number):
    """It writes over the output of the module before, which nobody reads again."""
    _, case = load_case(number)
    model, run = case.build()
    assert audited(lambda: run(model), model).hazards == ()
    assert any(r["mutation"] == "inplace" for r in record(lambda: run(model), model))
