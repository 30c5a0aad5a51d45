"""Programs distilled from bug reports: each is a file in tests/cases, with its right answer beside it."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

from folders import CASES


def load(path: Path) -> ModuleType:
    """A case as a module: `build()` gives a model and what to run, `EXPECT` is the right answer."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load_case(number: int) -> tuple[Path, ModuleType]:
    """The case with this number."""
    (path,) = CASES.glob(f"case_{number:02}_*.py")
    return path, load(path)


def code_of(path: Path, source: str | None) -> str:
    """The text of a line, of `file.py:31 in forward`."""
    line = re.match(r".*:(\d+) in ", source or "")
    return path.read_text().splitlines()[int(line[1]) - 1].strip() if line else ""
