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
from make_outputs import differences, scrub

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
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


def test_scrubbing_keeps_counts():
    """Times, sizes, shares and decimals are not compared, and neither is padding; counts and words are."""
    assert scrub("relu_  44  12.5 ms   3 MB  97 %  0.25 -1e-3") == scrub("relu_ 44   1.5 s  10.25 kB  9.1 %  0.5 -1e-3")
    assert scrub("relu_  44") != scrub("relu_  45")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    """Every link between files of the project has a target."""
    for target in LINK.findall(path.read_text()):
        assert (path.parent / target).exists(), f"{path.name} links to {target}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_commands_exist(path):
    """Every `dispatchmon COMMAND` that a document names is a command."""
    assert set(re.findall(r"(?:`|output: )dispatchmon ([a-z]+)", path.read_text())) <= set(COMMANDS)
