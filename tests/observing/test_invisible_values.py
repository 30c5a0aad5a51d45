"""Recording modules and parameters changes no bit of any program."""

from __future__ import annotations

import pytest

import programs
from comparison import differences, monitored, outcome
from dispatchmon import open_trace
from recorded import COMPILES_UNDER_MODES

pytestmark = pytest.mark.slow

# Programs that are about dispatch modes themselves.
RECORDS = {"modules and parameters": ("modules", "parameters"), "all": ("ops", "modules", "parameters")}


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
@pytest.mark.parametrize("name", programs.PROGRAMS)
def test_same_bits(name, record, tmp_path):
    """The program returns the same, leaves the same model, version counters and random streams; no event failed."""
    program = programs.PROGRAMS[name]
    if "ops" in record and name.startswith(("compiled", "cond")) and not COMPILES_UNDER_MODES:
        pytest.skip("before torch 2.9 torch.compile compiles nothing under any dispatch mode")
    alone = outcome(program.build)
    watched = outcome(program.build, monitored(tmp_path / "trace.arrow", record=record))
    assert not differences(alone, watched), (alone["error"], watched["error"])
    file = open_trace(tmp_path / "trace.arrow").files[0]
    assert file.complete
    assert not [why for why in file.skipped if "could not be recorded" in why]
