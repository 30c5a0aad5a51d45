"""
What reads a trace imports downwards only: the command line, `trace`, exports and analyses, reading, words and memory.
"""

import ast
from pathlib import Path

import pytest

import dispatchmon
import dispatchmon_cli

ROOM = Path(dispatchmon.__file__).parent
LEAVES = {"dispatchmon.schema", "dispatchmon.errors"}
BELOW = {  # what the files of a room may import, of this project, besides the room itself
    "dispatchmon.words": set(),
    "dispatchmon.memory": set(),
    "dispatchmon.reading": {"dispatchmon.words", "dispatchmon.memory", *LEAVES},
    "dispatchmon.analysis": {"dispatchmon.reading", "dispatchmon.words", "dispatchmon.memory", *LEAVES},
    "dispatchmon.export": {"dispatchmon.reading", "dispatchmon.words", *LEAVES},
    "dispatchmon.trace": {"dispatchmon.analysis", "dispatchmon.export", "dispatchmon.reading", "dispatchmon.words"},
}


def files_of(name):
    """The files of a room or a module, by their names as modules."""
    place = ROOM.joinpath(*name.split(".")[1:])
    paths = place.rglob("*.py") if place.is_dir() else [place.with_suffix(".py")]
    found = {}
    for path in paths:
        parts = path.relative_to(ROOM.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(path):
    """The modules that a file imports, also within functions and for type checkers; relative imports are not used here."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            yield node.module


@pytest.mark.parametrize("room", BELOW)
def test_a_room_imports_only_what_lies_below(room):
    """Neither torch nor a room above or beside it."""
    for name, path in files_of(room).items():
        for module in imports_of(path):
            if module.startswith("dispatchmon"):
                allowed = {room, *BELOW[room]}
                assert any(module == each or module.startswith(f"{each}.") for each in allowed), f"{name} imports {module}"
            assert module.partition(".")[0] != "torch", f"{name} imports torch"


def test_the_command_line_imports_no_recording():
    """It reads traces: what it takes of the package is what readers have, and the package's errors and version."""
    allowed = {"dispatchmon_cli", *BELOW, *LEAVES}
    for path in Path(dispatchmon_cli.__file__).parent.glob("*.py"):
        for module in imports_of(path):
            if module.startswith("dispatchmon") and module != "dispatchmon":
                assert any(module == each or module.startswith(f"{each}.") for each in allowed), f"{path.name}: {module}"


@pytest.mark.parametrize("room", BELOW)
def test_no_circle_within_a_room(room):
    """Files can be read in an order in which each comes after those that it imports."""
    files = files_of(room)
    left = {name: {module for module in imports_of(path) if module in files} for name, path in files.items()}
    while left:
        ready = {name for name, needs in left.items() if not needs & set(left)}
        assert ready, f"a circle within {sorted(left)}"
        left = {name: needs for name, needs in left.items() if name not in ready}
