"""The session in docs/python.md prints what the document shows."""

import doctest
import re
from pathlib import Path

from audited import NEEDS_SAVINGS

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "python.md"


@NEEDS_SAVINGS  # what the document shows of the audit and of the warnings
def test_the_session(tmp_path, monkeypatch):
    """The examples run in order, on a trace that they record themselves, and print what stands below them."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    session = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, DOCUMENT.name, str(DOCUMENT), 0)
    said = []
    results = doctest.DocTestRunner(verbose=False).run(session, out=said.append)
    assert results.attempted > 20
    assert "".join(said) == ""
