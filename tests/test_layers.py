"""The rooms of the package, and that every arrow between them runs down."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "dispatchmon"

# From the top down: a room may import those below it, and nothing beside or above. One line is one floor.
FLOORS = (
    ("__init__", "__main__"),
    ("mode",),
    ("trace",),
    ("recording",),
    ("settings", "export"),
    ("observing", "analysis"),
    ("hazards", "reading"),
    ("module_tracker", "sink"),
    ("attribution", "writing"),
    ("values",),
    ("operators", "statistics"),
    ("packed", "torch_internals"),
    ("memory", "words", "schema", "errors", "version"),
)
FLOOR = {room: len(FLOORS) - i for i, floor in enumerate(FLOORS) for room in floor}
WITHOUT_TORCH = ("trace", "export", "analysis", "reading", "sink", "writing", "packed", "memory", "words", "schema", "errors", "version")


def modules() -> dict[str, Path]:
    """Every module of the package, by its name without `dispatchmon.`; a package stands for its `__init__`."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)] = path
    return found


MODULES = modules()


def imports(path: Path) -> set[str]:
    """What a file imports of the package, also inside functions and under TYPE_CHECKING, as names of MODULES."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            if node.module == "dispatchmon":
                found |= {name.name if name.name in MODULES else "__init__" for name in node.names}
            elif (node.module or "").startswith("dispatchmon."):
                base = str(node.module).removeprefix("dispatchmon.")
                found |= {inner if (inner := f"{base}.{name.name}") in MODULES else base for name in node.names}
        elif isinstance(node, ast.Import):
            found |= {n.name.removeprefix("dispatchmon.") for n in node.names if n.name.startswith("dispatchmon.")}
    return found


def room(module: str) -> str:
    """The folder or file at the top of the package that a module is in."""
    return module.partition(".")[0]


def test_every_room_has_a_floor():
    """A new room is put into the table."""
    assert {room(module) for module in MODULES} == set(FLOOR)


@pytest.mark.parametrize("module", sorted(MODULES))
def test_arrows_run_down(module):
    """A module imports from its own room and from those below; only the doors' lazy homes are named upwards."""
    if room(module) in ("__init__", "__main__"):
        return
    wrong = {
        other
        for other in imports(MODULES[module])
        if room(other) != room(module) and FLOOR[room(other)] >= FLOOR[room(module)]
    }
    assert not wrong, f"{module} is on floor {FLOOR[room(module)]} and imports {', '.join(sorted(wrong))}"


def test_no_circle_within_a_room():
    """Nor do two files of one room import each other, on whatever way."""
    arrows = {module: {o for o in imports(path) if o in MODULES} for module, path in MODULES.items()}
    done: set[str] = set()

    def visit(module: str, way: tuple[str, ...]) -> None:
        assert module not in way, f"a circle: {' -> '.join((*way[way.index(module) :], module))}"
        if module not in done:
            for other in sorted(arrows[module]):
                visit(other, (*way, module))
            done.add(module)

    for module in sorted(arrows):
        if room(module) not in ("__init__", "__main__"):
            visit(module, ())


@pytest.mark.parametrize("module", sorted(m for m in MODULES if room(m) in WITHOUT_TORCH))
def test_reading_and_writing_need_no_torch(module):
    """What reads a trace, and what turns packed integers into one, runs where torch is not installed."""
    names = {
        name.name.partition(".")[0] if isinstance(node, ast.Import) else str(node.module).partition(".")[0]
        for node in ast.walk(ast.parse(MODULES[module].read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in node.names
    }
    assert "torch" not in names


def test_every_room_says_what_it_is():
    """The docstring of a folder says what comes in, what goes out, and who may import it."""
    for module, path in MODULES.items():
        if path.name == "__init__.py" and module != "__init__":
            tree = ast.parse(path.read_text())
            assert len(ast.get_docstring(tree) or "") > 40, module
