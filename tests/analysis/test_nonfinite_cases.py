"""Every shared case of a NaN, an Inf or unwritten memory, by its own right answer."""

import re

import pytest
import torch

from dispatchmon import DispatchMonitor, open_trace
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
    with DispatchMonitor(model, folder / "trace.arrow", quiet=True) as monitor:
        run(model)
    assert monitor.error is None
    return find_nonfinite(open_trace(folder / "trace.arrow"))


def check_place(path, place, forward, want):
    """A place of the answer is that of EXPECT."""
    assert place.op == want.get("op", place.op)
    assert place.module == want.get("module", place.module)
    assert place.phase == want.get("phase", place.phase)
    assert place.step == want.get("step", place.step)
    if "line" in want:
        lines = [code_of(path, place.source), code_of(path, forward.source) if forward else ""]
        assert any(re.search(want["line"], line) for line in lines), lines
    if "fwd_op" in want:
        assert forward.op == want["fwd_op"]


@pytest.mark.parametrize("path", of_kind("first-nonfinite"), ids=lambda path: path.stem)
def test_first_nonfinite(path, tmp_path):
    """The first origin of what the case says is where the case says; its cause, and where it was stored, are too."""
    case = load(path)
    want, answer = case.EXPECT, answer_to(case, tmp_path)
    origin = next(o for o in answer.origins if o.what == want["what"])
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
    if "stored_by" in want:
        stored = origin.spread["buffer"]
        assert (stored.op, stored.module, stored.name) == tuple(
            want["stored_by"][k] for k in ("op", "module", "target")
        )


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
    assert (len(of_kind("first-nonfinite")), len(of_kind("uninitialised-read"))) == (7, 2)
