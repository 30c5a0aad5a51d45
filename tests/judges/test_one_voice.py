"""The closing line, `summarize`, `nonfinite` and `on_nonfinite` say the same of one run, whatever it is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dispatchmon import DispatchMonitor, NonFiniteError
from dispatchmon.analysis.nonfinite import NonFinite
from dispatchmon.analysis.summary import Summary
from folders import CASES
from nonfinite_programs import PROGRAMS
from reported import load

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
Build = Callable[[], tuple[Any, Callable[[Any], Any]]]


def builders() -> Iterator[Any]:
    """Every program that is here: what makes its model, and what runs it."""
    for path in sorted(CASES.rglob("*.py")):
        yield pytest.param(lambda path=path: load(path).build(), id=path.stem)
    for name, make, run in PROGRAMS:
        yield pytest.param(lambda make=make, run=run: (make(), run), id=name)


ALL = list(builders())


def littered() -> None:
    """Leave large numbers in memory that is freed, for whoever allocates next."""
    litter = [torch.full((n,), 3e37) for n in range(1, 300) for _ in range(2)]
    del litter


def run(build: Build, path: Path, **settings: Any) -> tuple[DispatchMonitor, Exception | None]:
    """Run a program under a monitor; what it ended with."""
    torch.manual_seed(1)
    model, body = build()
    littered()
    monitor = DispatchMonitor(model, path, **settings)
    try:
        with monitor:
            body(model)
    except Exception as error:
        return monitor, error
    assert monitor.error is None
    return monitor, None


def words_for(answer: NonFinite) -> str:
    """What the closing line says of NaN and Inf where the command exits 2."""
    if answer.first is not None:
        return f"first {'NaN' if answer.first.what == 'nan' else 'Inf'} in {answer.first.op}"
    if answer.vanished:
        return f"overflow in {answer.vanished[0].op}"
    return f"unwritten memory of {next(each.op for each in answer.uninitialised if each.matters)} was read in"


def agreed(monitor: DispatchMonitor, said: str) -> Summary:
    """Check what is said of one run: where `nonfinite` exits 2 the closing line says it, where it exits 0 both others are calm."""
    line = next(line for line in reversed(said.splitlines()) if line.startswith("dispatchmon: "))
    answer, summary = monitor.trace.nonfinite(), monitor.trace.summarize()
    seen = summary.stands_out.first_nonfinite
    if answer.found:
        assert f", {words_for(answer)}" in line
        assert re.search(r"Next: dispatchmon (nonfinite|audit) ", line)
    else:
        assert re.search(r", no NaN or Inf( that did harm)?\. Next: dispatchmon (summarize|audit) ", line)
    if answer.first is not None:
        assert seen is not None
        assert (seen.step, seen.event) <= (answer.first.step, answer.first.event)
    if seen is not None and seen.deliberate:
        known = [each.event for each in (*answer.deliberate, *answer.origins)]
        assert seen.event in known or seen.op == "aten.lift_fresh.default"
    if seen is not None and seen.event in {each.event for each in answer.deliberate}:
        assert seen.deliberate or seen.op == "aten.mul.Tensor"  # by an Inf of its own: it is calculated with, not filled in
    if ", no NaN or Inf. " in line:
        assert seen is None
    return summary


@pytest.mark.parametrize("build", ALL)
def test_the_closing_line_and_the_commands(build, tmp_path, capfd):
    """They agree, whatever unwritten memory holds; and unless something reads it, in or before the block, no number is shown."""
    monitor, _ = run(build, tmp_path / "t.arrow")
    summary = agreed(monitor, capfd.readouterr().err)
    torch.use_deterministic_algorithms(True, warn_only=True)  # fills it with NaN
    try:
        filled, _ = run(build, tmp_path / "filled.arrow")
        other = agreed(filled, capfd.readouterr().err)
    finally:
        torch.use_deterministic_algorithms(False)
    answer = monitor.trace.nonfinite()
    if not answer.uninitialised and not any(origin.kind == "external" for origin in answer.origins):
        shown = [{g.key: (g.magnitude, g.nan, g.inf) for g in each.groups} for each in (summary, other)]
        assert shown[0] == shown[1]


@pytest.mark.parametrize("build", ALL)
def test_while_it_runs(build, tmp_path):
    """`on_nonfinite="raise"` raises exactly where the command, asked about the trace that ends there, exits 2."""
    monitor, error = run(build, tmp_path / "t.arrow", on_nonfinite="raise", quiet=True)
    answer = monitor.trace.nonfinite()
    if error is None or isinstance(error, NonFiniteError):
        assert isinstance(error, NonFiniteError) == answer.found
    if isinstance(error, NonFiniteError):
        said = [*answer.origins, *answer.vanished, *answer.uninitialised]
        assert str(error) in [each.message for each in said]
