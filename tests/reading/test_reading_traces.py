"""The queries of docs/reading_traces.md run, and agree with `dispatchmon summarize`."""

import json
import re
import subprocess
import sys

import pytest
import torch
from torch import nn

from dispatchmon import DispatchMonitor
from folders import ROOT

DOCUMENT = ROOT / "docs" / "reading_traces.md"
QUERIES = dict(re.findall(r"^## (\w+)\n.*?```python\n(.*?)```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a trace.arrow of two training steps of a network that writes in place."""
    folder = tmp_path_factory.mktemp("reading")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with DispatchMonitor(model, folder / "trace.arrow", quiet=True):
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(3, 4)).sum().backward()
            optimizer.step()
    return folder


@pytest.fixture(scope="module")
def writes(folder):
    """Return the number of events that wrote in place, as summarize says it."""
    command = [sys.executable, "-m", "dispatchmon", "summarize", "trace.arrow", "--format", "json"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder).stdout
    return json.loads(printed)["totals"]["writes"]


def test_every_reader_is_shown():
    """The document shows pyarrow, DuckDB, Polars and pandas."""
    assert list(QUERIES) == ["pyarrow", "DuckDB", "Polars", "pandas"]


@pytest.mark.parametrize("reader", QUERIES)
def test_readers_agree_with_summarize(reader, folder, writes, monkeypatch, capsys):
    """The query of each reader counts as many in-place writes as dispatchmon does."""
    monkeypatch.chdir(folder)
    exec(QUERIES[reader], {})
    assert int(capsys.readouterr().out) == writes > 0


@pytest.mark.parametrize("reader", QUERIES)
def test_queries_are_short(reader):
    """Apart from imports each query has two lines."""
    lines = [line for line in QUERIES[reader].splitlines() if line and not line.startswith("import")]
    assert len(lines) == 2


def test_a_query_leaves_room_for_the_next(folder, monkeypatch):
    """Whoever copies DuckDB's query can go on with `duckdb.sql`: no unfinished result is left on the shared connection."""
    import duckdb

    monkeypatch.chdir(folder)
    exec(QUERIES["DuckDB"], {})
    assert duckdb.sql("SELECT 1").fetchall() == [(1,)]
