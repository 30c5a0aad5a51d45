"""
Programs distilled from public reports, each with its right answer, written before the tool was run.

`tuned` were looked at while the rules were written; `unseen` were judged once, when everything was done. What is not right is
listed here with its reason, and must stay as it is listed: better or worse, the list is wrong then.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from audited import NEEDS_SAVINGS
from folders import CASES
from judged import judge
from reported import load

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), NEEDS_SAVINGS]
SHARED = [path for path in sorted(CASES.glob("case_*.py")) if int(path.name.split("_")[1]) >= 70]
REPORTS = sorted(CASES.glob("reports/*/case_*.py"))
TABLE = Path(__file__).parents[2] / "docs" / "reports.md"
NOT_RIGHT = {
    81: ("missed", "p.grad = g keeps the tensor itself: the same object is written and read, only names differ"),
    212: ("missed", "mul_ of an unfold: its overlapping strides are not 0, and torch lets it pass"),
    214: ("silent", "load_state_dict keeps the tensors themselves: no operator shows it"),
    218: ("partly", "said as an alias that detach() keeps, not as the argument of the roll-out"),
    219: ("silent", "target = online binds a name: no operator shows it"),
    220: ("missed", "two slices of one output buffer: the second out= takes what the first result shows"),
    305: ("partly", "the NaN that the batch brings is said first, before 0 * NaN in backward"),
}


@pytest.mark.parametrize("path", [*SHARED, *REPORTS], ids=lambda path: path.stem)
def test_report(path):
    """Right, and nothing beside it."""
    found = judge(path)
    expected = NOT_RIGHT.get(int(path.name.split("_")[1]), ("right", ""))[0]
    assert (found.verdict, found.others) == (expected, []), found


@pytest.mark.parametrize("path", REPORTS, ids=lambda path: path.stem)
def test_the_table_says_so(path):
    """docs/reports.md has a row for each report, with what came out."""
    number = int(path.name.split("_")[1])
    verdict, why = NOT_RIGHT.get(number, ("right", ""))
    rows = [line for line in TABLE.read_text().splitlines() if line.startswith(f"| {number} | {load(path).REPORT} |")]
    assert [row.endswith(f"| {verdict}: {why} |" if why else f"| {verdict} |") for row in rows] == [True]
