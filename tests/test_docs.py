"""The documents agree with the program."""

import re
from pathlib import Path

import pytest
import torch

from audited import NEEDS_SAVINGS
from dispatchmon import DispatchMonitor, open_trace
from dispatchmon.schema import CLOSING, METADATA
from dispatchmon_cli.group import COMMANDS
from make_format import document
from make_outputs import alike, difference, differences

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\[[^\]]+\]\((?!https?:|#)([^)#]+)")


def test_format_is_current():
    """docs/format.md is what `make docs` writes from schema.py."""
    assert (ROOT / "docs" / "format.md").read_text() == document()


def test_format_names_the_keys_of_a_trace(tmp_path):
    """The metadata and the closing statement of a trace have exactly the keys that the format describes."""
    with DispatchMonitor(torch.nn.Linear(1, 1), tmp_path / "trace.arrow", keep_last=1, quiet=True):
        torch.ones(1).add(1)
    file = open_trace(tmp_path / "trace.arrow").files[0]
    assert set(file.metadata) == set(METADATA)
    assert set(file.closing) == set(CLOSING)


@pytest.mark.slow
@NEEDS_SAVINGS  # what the documents show of the audit
def test_outputs_are_current(tmp_path):
    """The commands of the README print what it shows, numbers that depend on the machine aside."""
    assert differences(tmp_path) == ""


@pytest.mark.parametrize(("shown", "printed", "same"), [
    ("relu_  44  12.5 ms   3", "relu_ 44   1.5 s  3", True),  # times and padding
    ("took 3 min 20 s", "took 850 µs", True),
    ("relu_  44", "relu_  45", False),  # a count
    ("relu_  1 044", "relu_  1 045", False),
    ("relu_  44", "relu  44", False),  # a word
    ("relu_  44  12.5 ms", "relu_  44  12.5", False),
    ("at net.py:19", "at net.py:20", False),
    ("-5.0801  0.0000", "-5.0800  -0.0000", True),  # rounding
    ("-5.0801", "5.0801", False),
    ("0.3917", "0.4321", False),
    ("0.3917", "0.0000", False),
    ("largest 5.5, 1.3e-05", "largest 5.554, 1.31e-05", True),
    ("largest 5.5", "largest 6.5", False),
    ("largest 5.5", "largest nan", False),
    ("largest 128", "largest 127", False),  # a whole value is exact
    ("accuracy 98.6%", "accuracy 97.2%", True),
    ("accuracy 98.6%", "accuracy 9.8%", False),
    ("in 1.0 MB", "in 990 kB", True),
    ("in 1.0 MB", "in 2.1 MB", False),
])  # fmt: skip
def test_what_may_differ_between_machines(shown, printed, same):
    """Times may; measured numbers, shares and sizes by a little; counts, whole values, signs and words may not."""
    assert alike(shown, printed) == alike(printed, shown) == same
    assert (difference(shown, printed) == []) == same


def test_a_line_more_or_less_is_a_difference():
    """Also when every line that both have is the same."""
    assert difference("a 1\nb 2\n", "a 1\n")
    assert difference("a 1\n", "a 1\nb 2\n")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    """Every link between files of the project has a target."""
    for target in LINK.findall(path.read_text()):
        assert (path.parent / target).exists(), f"{path.name} links to {target}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_files_exist(path):
    """Every file that a document names with its folder is there, in the project or in the package."""
    for name in re.findall(r"`([a-z_]+/[a-z_/]*[a-z_]+\.(?:py|c|md))`", path.read_text()):
        assert any((root / name).exists() for root in (ROOT, ROOT / "dispatchmon", ROOT / "cli")), name


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_commands_exist(path):
    """Every `dispatchmon COMMAND` that a document names is a command."""
    assert set(re.findall(r"(?:`|output: )dispatchmon ([a-z]+)", path.read_text())) <= set(COMMANDS)
