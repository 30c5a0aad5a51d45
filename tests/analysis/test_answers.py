"""
The four answers: the same for a program, a notebook and the command line.
"""

import json
import re
from html.parser import HTMLParser

import pytest

from command_line import FINITE, NONFINITE, run
from dispatchmon import Audit, NonFinite, Structure, Summary, open_trace
from folders import GOLD
from trace_factory import write_trace

pytestmark = pytest.mark.slow

COMMANDS = {"summarize": Summary, "structure": Structure, "audit": Audit, "nonfinite": NonFinite}
WRITE = {"written": True, "mutation": "inplace", "op": "aten.add_.Tensor"}
EVIL = "a\x1b[31m<script>alert(1)</script>&|b"


def make_trace(name, folder):
    """A trace by its name, in the folder if it is not there yet."""
    if name.startswith("gold"):
        return GOLD / f"trace-{name[4:]}.arrow"
    path = folder / f"{name}.arrow"
    if name == "ranks":
        for rank in (0, 1, 3):
            rows = [{**WRITE, "rank": rank, "step": i, "nan": i % 2, "std": float("inf")} for i in range(6)]
            write_trace(folder / f"r{rank}.arrow", rows, metadata={"rank": rank, "world_size": 4})
        return folder
    rows = {
        "empty": [],
        "finite": FINITE,
        "nonfinite": NONFINITE,
        "unmeasured": [{**WRITE, "module": f"m{i}", "shape": [i]} for i in range(30)],
        "modules": [{"kind": "module", "op": "Net", "module": "", "arg": "input[0]", "shape": [2, i]} for i in range(3)],
        "evil": [{**WRITE, "module": EVIL, "name": EVIL, "nan": 1, "inf": 0}, {"kind": "module", "op": EVIL, "module": EVIL}],
    }[name]
    return write_trace(path, rows, closing={"skipped": {"steps that were not asked for": 2}} if name == "finite" else None)


TRACES = ("empty", "finite", "nonfinite", "unmeasured", "modules", "ranks", "evil", "gold1.0", "gold1.1")


@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_prints_the_answer(command, name, tmp_path, capsys):
    """`to_dict` is the command's JSON and `str` what it prints into a pipe, warnings among the keys."""
    path = make_trace(name, tmp_path)
    trace = open_trace(path)
    answer = getattr(trace, command)()
    assert type(answer) is COMMANDS[command]
    assert answer.to_dict() == json.loads(run(capsys, command, path, "--format", "json")[1])
    assert answer.to_dict()["warnings"] == list(answer.warnings)
    assert set(trace.warnings) <= set(answer.warnings)
    printed = run(capsys, command, path)[1]
    assert f"{answer}\n" == printed


@pytest.mark.parametrize(
    ("command", "arguments", "options"),
    [
        ("summarize", {"by": "module", "sort": "nan", "top": 1}, ["--by", "module", "--sort", "nan", "--top", "1"]),
        ("summarize", {"by": "step", "top": 0}, ["--by", "step", "--top", "0"]),
        ("summarize", {"steps": 1}, ["--step", "1"]),
        ("summarize", {"steps": (1, None)}, ["--step", "1:"]),
        ("summarize", {"steps": ":1"}, ["--step", ":1"]),
        ("summarize", {"ops": ["*relu*", "*zeros*"]}, ["--op", "*relu*", "--op", "*zeros*"]),
        ("summarize", {"modules": ""}, ["--module", ""]),
        ("summarize", {"phases": "forward", "ranks": 0}, ["--phase", "forward", "--rank", "0"]),
        ("summarize", {"phases": ("backward", "optimizer")}, ["--phase", "backward", "--phase", "optimizer"]),
        ("audit", {"all": True, "top": 1}, ["--all", "--top", "1"]),
        ("audit", {"phases": "backward"}, ["--phase", "backward"]),
        ("nonfinite", {"steps": "0:1"}, ["--step", "0:1"]),
        ("structure", {"modules": "2*"}, ["--module", "2*"]),
    ],
)
def test_arguments_are_the_options(command, arguments, options, capsys):
    """An argument asks what the option of its name asks."""
    path = GOLD / "trace-1.1.arrow"
    answer = getattr(open_trace(path), command)(**arguments)
    assert answer.to_dict() == json.loads(run(capsys, command, path, "--format", "json", *options)[1])
    assert f"{answer}\n" == run(capsys, command, path, *options)[1]


def test_a_document_holds_what_json_holds(tmp_path):
    """A number that is not finite is a text, and there are lists, no tuples."""
    path = write_trace(tmp_path / "t.arrow", [{"min": -1.0, "max": float("inf"), "shape": [2]}])
    document = open_trace(path).summarize().to_dict()
    assert document["totals"]["magnitude"] == "inf"
    assert document["stands_out"]["largest"]["shape"] == [2]
    json.dumps(document, allow_nan=False)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "nonfinite",
            {
                "summarize": "<Summary: 4 operator calls in 2 steps, 3 of 3 groups by op, 1 write, 3 NaN and 1 Inf>",
                "structure": "<Structure: Net, 0 of 2 modules recorded, 0 calls>",
                "audit": "<Audit: 1 write in place, no hazard>",
                "nonfinite": "<NonFinite: nothing found in 5 values>",
            },
        ),
        (
            "empty",
            {
                "summarize": "<Summary: nothing matches>",
                "structure": "<Structure: Net, 0 of 2 modules recorded, 0 calls>",
                "audit": "<Audit: 0 writes in place, no hazard>",
                "nonfinite": "<NonFinite: nothing found in 0 values>",
            },
        ),
        (
            "gold1.1",
            {
                "summarize": "<Summary: 70 operator calls in 3 steps, 14 of 14 groups by op, 10 writes, 1 NaN and 2 Inf>",
                "structure": "<Structure: Sequential, 0 of 4 modules recorded, 0 calls>",
                "audit": "<Audit: 10 writes in place, no hazard>",
                "nonfinite": "<NonFinite: 1 origin, first aten.div.Tensor outside every module, step 2>",
            },
        ),
    ],
)
def test_repr_is_one_line(name, said, tmp_path):
    """What was counted or found, in a line."""
    trace = open_trace(make_trace(name, tmp_path))
    assert {command: repr(getattr(trace, command)()) for command in COMMANDS} == said


class Reader(HTMLParser):
    """Reads HTML: its tags, its text, and whether every tag is closed."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.text, self.open = set(), "", []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize("command", COMMANDS)
def test_html_is_well_formed_and_says_the_same(command, name, tmp_path):
    """Only the tags of a table; the sentences are those of the text; no control character."""
    answer = getattr(open_trace(make_trace(name, tmp_path)), command)()
    html = answer._repr_html_()
    read = Reader(html)
    assert read.open == []
    assert read.tags <= {"div", "table", "thead", "tbody", "tr", "th", "td", "br"}
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", html)
    for sentence in answer.closing()[-1:]:
        assert sentence.strip() in read.text


@pytest.mark.parametrize("command", ["summarize", "structure", "audit"])
def test_names_in_html_are_harmless(command, tmp_path):
    """A module may be called anything: markup and escape sequences are text."""
    trace = open_trace(make_trace("evil", tmp_path))
    html = getattr(trace, command)(**({"by": "module"} if command == "summarize" else {}))._repr_html_()
    assert "a\\x1b[31m&lt;script&gt;alert(1)&lt;/script&gt;&amp;|b" in html
    assert "<script" not in html


def test_html_of_many_rows_is_short(tmp_path):
    """Twenty rows, then how many more."""
    summary = open_trace(make_trace("unmeasured", tmp_path)).summarize(by="module", top=0)
    html = summary._repr_html_()
    assert html.count("<tr>") == 22  # the titles, twenty rows, and what is left
    assert "… and 10 more" in html
    assert "… and" not in open_trace(tmp_path / "unmeasured.arrow").summarize(by="module", top=20)._repr_html_()


def test_the_table_of_nonfinite_is_in_the_notebook_alone(tmp_path):
    """In a text the sentences say more than the table; a notebook has both."""
    answer = open_trace(GOLD / "trace-1.1.arrow").nonfinite()
    assert "<td" in answer._repr_html_()
    assert str(answer).startswith("`aten.div.Tensor` made 1 NaN")
    assert len(answer.table().rows) == 1
