"""Every shared case of a NaN, an Inf or unwritten memory, by its own right answer."""

import contextlib
import re

import pytest
import torch

from dispatchmon import DispatchMonitor, NonFiniteError, open_trace
from dispatchmon.analysis.nonfinite import find_nonfinite
from folders import CASES
from reported import code_of, load


def of_kind(kind):
    """The cases of a kind."""
    return [path for path in sorted(CASES.glob("case_*.py")) if f'"kind": "{kind}"' in path.read_text()]


def answer_to(case, folder):
    """What `dispatchmon nonfinite` finds in a run of the case."""
    torch.manual_seed(0)
    model, run = case.build()
    raises = case.EXPECT.get("raises")
    refused = pytest.raises(Exception, match=raises) if raises else contextlib.nullcontext()
    with refused, DispatchMonitor(model, folder / "trace.arrow", quiet=True) as monitor:
        run(model)
    assert monitor.error is None
    return find_nonfinite(open_trace(folder / "trace.arrow"))


def is_line(path, pattern, *places):
    """One of these places is at a line with this code."""
    return any(re.search(pattern, code_of(path, place.source)) for place in places if place is not None)


def check_place(path, place, forward, want):
    """A place of the answer is that of EXPECT."""
    assert f"{place.op}.".startswith(f"{want.get('op', place.op)}.")
    assert place.module == want.get("module", place.module)
    assert place.phase == want.get("phase", place.phase)
    assert place.step == want.get("step", place.step)
    if "line" in want:
        assert is_line(path, want["line"], place, forward), (place.source, forward)
    if "fwd_op" in want:
        assert forward.op == want["fwd_op"]


def check_reached(spread, want):
    """What EXPECT says was reached was reached, with its name if it has one there; a loss that stayed finite was not."""
    said = want.get("reaches", "")
    for what, words in {
        "loss": "loss",
        "gradient": "gradient",
        "parameter": "parameter",
        "result": "result|returned",
    }.items():
        if re.search(words, said):
            assert what in spread
    names = re.findall(r"\w+(?:\.\w+)*\.(?:weight|bias)", said)
    if names:
        assert spread["parameter"].name in names
    if want.get("loss_finite"):
        assert "loss" not in spread


@pytest.mark.parametrize("path", of_kind("first-nonfinite"), ids=lambda path: path.stem)
def test_first_nonfinite(path, tmp_path):
    """The first origin of what the case says is where the case says; its cause, and where it was stored, are too."""
    case = load(path)
    want, answer = case.EXPECT, answer_to(case, tmp_path)
    what = "inf" if want["what"] == "inf" else "nan"  # "nan (made of inf)", "inf, then nan"
    origin = next(o for o in answer.origins if o.what == what)
    check_place(path, origin, origin.forward, want)
    if "input_finite" in want:
        assert origin.inputs_finite is want["input_finite"]
    inf = want.get("first_inf")
    if inf and inf.get("deliberate"):
        assert "filled in on purpose" in origin.message
        assert {link.event for link in origin.cause} & {d.event for d in answer.deliberate}
    elif inf:
        first = answer.first
        assert (first.what, first.event) == ("inf", origin.cause[-1].event)
        check_place(path, first, first.forward, inf)
        if "input_finite" in inf:
            assert first.inputs_finite is inf["input_finite"]
    else:
        assert answer.first is origin
    check_reached(answer.first.spread, want)
    if "stored_by" in want:
        stored = origin.spread["buffer"]
        assert (stored.op, stored.module, stored.name) == tuple(
            want["stored_by"][k] for k in ("op", "module", "target")
        )
    if want.get("external"):
        assert (origin.kind, origin.spread["parameter"].name) == ("external", want["name"])
        assert f"in `{want['name']}` when" in origin.message
    if "not" in want:
        assert not any(
            "on purpose" in text for o in answer.origins for text in (o.message, *(c.message for c in o.cause))
        )
    if "raises" in want:
        assert answer.first.spread["raised"].op.split(".")[1] in code_of(path, answer.first.spread["raised"].source)
    if "second" in want:
        pattern = want["second"].partition(" in the ")[0]
        assert any(is_line(path, pattern, o) for o in answer.origins[1:] if o.follows is None)


@pytest.mark.parametrize("path", of_kind("first-nonfinite"), ids=lambda path: path.stem)
def test_one_line_is_one_finding(path, tmp_path):
    """No operator of a module and line is listed twice for one cause, and a list of findings is short."""
    origins = [o for o in answer_to(load(path), tmp_path).origins if o.follows is None]
    keys = [(o.kind, o.what, o.phase, o.op, o.module, o.source, o.cause and o.cause[-1].source) for o in origins]
    assert len(set(keys)) == len(keys) <= 3


@pytest.mark.parametrize("path", of_kind("overflow-then-zero"), ids=lambda path: path.stem)
def test_overflow_then_zero(path, tmp_path):
    """An overflow that became exact zeros is found though no NaN and no Inf is left, with who cleared it."""
    case = load(path)
    want, answer = case.EXPECT, answer_to(case, tmp_path)
    (found,) = answer.vanished
    check_place(path, found, None, want)
    assert found.zeroed.op == want["swallowed_by"]
    check_reached(found.spread, want)
    assert answer.found
    assert answer.origins == ()


def place_of(origin):
    """Where it began."""
    return origin.event, origin.op, origin.module, origin.source, origin.step, origin.phase, origin.kind


@pytest.mark.parametrize("path", of_kind("first-nonfinite"), ids=lambda path: path.stem)
def test_the_same_is_said_while_it_runs(path, tmp_path):
    """`on_nonfinite="raise"` raises, and names the same origin."""
    case = load(path)
    answer = answer_to(case, tmp_path)
    torch.manual_seed(0)
    model, run = case.build()
    with (
        pytest.raises(NonFiniteError) as caught,
        DispatchMonitor(model, tmp_path / "raised.arrow", on_nonfinite="raise", quiet=True),
    ):
        run(model)
    first = open_trace(tmp_path / "raised.arrow").nonfinite().first
    assert str(caught.value) == first.message
    assert place_of(first) == place_of(answer.first)


@pytest.mark.parametrize("path", of_kind("uninitialised-read"), ids=lambda path: path.stem)
def test_uninitialised_read(path, tmp_path):
    """Memory that was read before it was written is found, with its allocator and its first reader, and is no origin."""
    case = load(path)
    want, answer = case.EXPECT, answer_to(case, tmp_path)
    found = answer.uninitialised[0]
    assert found.matters
    assert not answer.origins or want.get("note", "").startswith("run to run")
    check_place(path, found, None, {"op": want["origin_op"], "module": want["module"], "line": want["line"]})
    check_place(path, found.reader, None, want.get("first_reader", {}))
    if "written_fraction" in want:
        assert found.written == pytest.approx(want["written_fraction"])


def test_there_are_cases():
    """The lists above are not empty."""
    assert [len(of_kind(k)) for k in ("first-nonfinite", "uninitialised-read", "overflow-then-zero")] == [19, 2, 1]
