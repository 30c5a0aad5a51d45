"""
What the commands say of a case, held against its EXPECT: right, partly or missed, and every word beside it.

EXPECT was written before the tool was run; `tests/cases/README.md` says what its keys mean.
"""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from dispatchmon import DispatchMonitor, open_trace
from dispatchmon.trace import Trace
from reported import code_of, load

# The words of the cases: the kinds of finding that say it. Torch may refuse what it could also have let pass.
KINDS = {
    "inplace-after-save": ("write-after-save", "undeclared-write"),
    "caller-tensor-overwritten": ("input-overwritten",),
    "module-input-overwritten": ("input-overwritten",),
    "alias-overwritten": ("alias-overwritten", "input-overwritten"),
    "gradient-overwritten": ("alias-overwritten", "input-overwritten"),
    "parameter-overwritten": ("parameter-write",),
    "operands-overlap": ("overlapping-write", "blocked-write"),
    "internal-overlap-write": ("overlapping-write", "blocked-write"),
    "out-aliases-input": ("overlapping-write", "blocked-write"),
    "inplace-forbidden": ("blocked-write",),
    "undeclared-write": ("undeclared-write",),
}


@dataclass
class Verdict:
    """How an answer stands to its EXPECT."""

    verdict: str  # right, partly, missed; "silent" where saying nothing is right and nothing was said
    wrong: list[str] = field(default_factory=list)  # of the nearest answer
    others: list[str] = field(default_factory=list)  # what was said beside it


def recorded_case(path: Path, folder: Path) -> tuple[ModuleType, Trace, BaseException | None]:
    """Run a case under a monitor; how it ended must be what EXPECT says."""
    case = load(path)
    torch.manual_seed(0)
    model, run = case.build()
    ended = None
    try:
        with DispatchMonitor(model, folder / "trace.arrow", quiet=True) as monitor:
            run(model)
    except Exception as error:
        ended = error
    assert monitor.error is None
    raises = case.EXPECT.get("raises")
    assert bool(raises) == (ended is not None), ended
    assert not raises or re.search(raises, str(ended)), ended
    return case, open_trace(folder / "trace.arrow"), ended


def judge(path: Path) -> Verdict:
    """What `audit` or `nonfinite` makes of a case, whichever it is about."""
    with tempfile.TemporaryDirectory() as folder:
        case, trace, ended = recorded_case(path, Path(folder))
        want = case.EXPECT
        if want["kind"] in KINDS:
            return judge_audit(path, want, trace, ended)
        return judge_nonfinite(path, want, trace)


def judge_audit(path: Path, want: dict[str, Any], trace: Trace, ended: BaseException | None) -> Verdict:
    """The finding that is nearest to EXPECT."""
    answer = trace.audit()
    candidates = answer.hazards if want["kind"] != "undeclared-write" else answer.findings
    wrong = {id(f): differences_of_finding(path, want, f, ended) for f in candidates}
    if want.get("beyond") and not candidates:
        return Verdict("silent")
    best = min(candidates, key=lambda f: len(wrong[id(f)]), default=None)
    if best is None:
        return Verdict("missed", ["nothing was said"])
    place = best.op, best.source
    others = [f.message for f in answer.hazards if (f.op, f.source) != place and "line" in wrong[id(f)]]
    if "line" in wrong[id(best)]:
        return Verdict("missed", wrong[id(best)], [f.message for f in answer.hazards])
    return Verdict("partly" if wrong[id(best)] else "right", wrong[id(best)], others)


def differences_of_finding(path: Path, want: dict[str, Any], found: Any, ended: BaseException | None) -> list[str]:
    """In what a finding is not what EXPECT says."""
    op = want.get("op") or want.get("blocked_op")
    victim, phase = want.get("victim_op"), "recompute" if want.get("recompute") else want.get("phase")
    checks = {
        "kind": found.kind in KINDS[want["kind"]],
        "op": op is None or found.op == op,
        "module": "module" not in want or found.module == want["module"],
        "phase": phase is None or found.phase == phase,
        "line": bool(re.search(want["line"], code_of(path, found.source))),
        "victim": victim is None or (found.victim is not None and is_victim(victim, found.victim.op)),
        "explains": ended is None or found.explains,
    }
    return [name for name, right in checks.items() if not right]


def is_victim(want: str, op: str | None) -> bool:
    """`aten.view.default / aten.cat (the measure)`: one of them; `Warp (custom autograd.Function)`: of that name."""
    names = [each.split("(")[0].strip() for each in want.split("/")]
    return any((op or "").startswith(name) for name in names if name)


def judge_nonfinite(path: Path, want: dict[str, Any], trace: Trace) -> Verdict:
    """The origin, or what was read before it was written, that is nearest to EXPECT."""
    answer = trace.nonfinite()
    if want["kind"] == "uninitialised-read":
        found = [u for u in answer.uninitialised if u.matters]
        place = {**want, "op": want["origin_op"], "fwd_op": None, "what": None}
        wrongs = [differences_of_place(path, place, u) for u in found]
        others = [o.message for o in answer.origins]
    else:
        found = [*answer.origins, *getattr(answer, "vanished", ())]
        wrongs = [differences_of_place(path, want, o) for o in found]
        inf = want.get("first_inf")
        if wrongs and inf and not inf.get("deliberate"):  # the earlier Inf may be the first that is said
            first = differences_of_place(path, {"line": want["line"], **inf, "what": "inf"}, answer.first)
            wrongs[0] = min(wrongs[0], first, key=len)
        others = []
    if not wrongs:
        return Verdict("missed", ["nothing was said"], others)
    if not wrongs[0]:
        return Verdict("right")
    best = min(wrongs, key=len)
    if "line" in best:
        return Verdict("missed", best, [o.message for o in answer.origins])
    return Verdict("partly", best or ["not the first that is said"], others)


def differences_of_place(path: Path, want: dict[str, Any], place: Any) -> list[str]:
    """In what a place is not what EXPECT says."""
    forward = getattr(place, "forward", None)
    lines = [code_of(path, place.source), code_of(path, forward.source) if forward else ""]
    what = (want.get("what") or "").split(" ")[0].rstrip(",")
    checks = {
        "op": "op" not in want or place.op.startswith(want["op"]),
        "module": "module" not in want or place.module == want["module"],
        "phase": "phase" not in want or place.phase == want["phase"],
        "step": "step" not in want or place.step == want["step"],
        "line": "line" not in want or any(re.search(want["line"], line) for line in lines),
        "what": not what or getattr(place, "what", what) == what,
        "fwd_op": not want.get("fwd_op") or (forward is not None and forward.op == want["fwd_op"]),
    }
    return [name for name, right in checks.items() if not right]
