"""
The gold trace of each minor version of the format: whatever comes later goes on reading it.
"""


import pytest

from dispatchmon.analysis.summary import summarize
from dispatchmon.schema import FORMAT_VERSION, SCHEMA
from dispatchmon.trace import open_trace
from folders import GOLD


def test_there_is_one_for_the_current_version():
    """Raising the minor version asks for a new gold trace."""
    assert (GOLD / f"trace-{FORMAT_VERSION}.arrow").exists()


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
def test_numbers(version):
    """They are those worked out by hand for the network in make_gold.py."""
    trace = open_trace(GOLD / f"trace-{version}.arrow")
    assert (trace.complete, trace.warnings, trace.rows) == (True, (), 164)
    table = trace.scan().read_all()
    assert table.schema.equals(SCHEMA)
    first, second = [row for row in table.to_pylist() if row["op"] == "aten.relu_.default"][:2]
    # 1 - 2 · 2 and 0.5 + 2 + 0.25
    assert (first["role"], first["min"], first["max"], first["mean"], first["zero"]) == ("input", -3.0, 2.75, -0.125, 0)
    assert (second["role"], second["min"], second["max"], second["zero"]) == ("output", 0.0, 2.75, 1)
    assert (first["module"], first["written"], second["written"], first["shape"]) == ("1", True, True, [1, 2])
    assert second["version"] == first["version"] + 1
    quotient = table.to_pylist()[-1]
    assert (quotient["nan"], quotient["inf"], quotient["posinf"], quotient["max"]) == (1, 2, 1, None)
    totals = summarize(trace).totals
    assert (totals.calls, totals.writes, totals.nan, totals.inf, totals.steps) == (70, 10, 1, 2, 3)


def test_format_1_1_says_which_names_are_one_module():
    """The ReLU of the network has a second name, which says so; before 1.1 no name did."""
    modules = {version: open_trace(GOLD / f"trace-{version}.arrow").structure().modules for version in ("1.0", "1.1")}
    assert {m.name: m.same_as for m in modules["1.1"]} == {"": None, "0": None, "1": None, "2": None, "2.again": "1"}
    assert {m.same_as for m in modules["1.0"]} == {None}
