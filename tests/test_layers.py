"""The rooms of the package, and that every arrow between them runs down."""

from __future__ import annotations

import ast

import pytest

from make_architecture import CLI, FLOOR, MODULES, TARGET, WITHOUT_TORCH, document, imports, room


def test_every_room_has_a_floor():
    """A new room is put into the table."""
    assert {room(module) for module in MODULES} == set(FLOOR)


@pytest.mark.parametrize("module", sorted(MODULES))
def test_arrows_run_down(module):
    """A module imports from its own room and from those below; only the package's door, which is lazy, names those above."""
    if room(module) in ("__init__", "__main__"):
        return
    wrong = {
        other
        for other in imports(MODULES[module])
        if room(other) != room(module) and FLOOR[room(other)] >= FLOOR[room(module)]
    }
    assert not wrong, f"{module} is on floor {FLOOR[room(module)]} and imports {', '.join(sorted(wrong))}"


def test_no_circle_within_a_room():
    """Nor do files of one room import each other, on whatever way."""
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


@pytest.mark.parametrize("path", sorted(CLI.glob("*.py")), ids=lambda path: path.stem)
def test_the_command_line_imports_what_reads(path):
    """It reads traces, and takes nothing of the rooms that record."""
    assert {room(other) for other in imports(path)} <= {*WITHOUT_TORCH, "__init__"}


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
    """The docstring of a folder at the top says what comes in, what goes out, and who may import it."""
    for module, path in MODULES.items():
        if path.name == "__init__.py" and "." not in module and module != "__init__":
            said = ast.get_docstring(ast.parse(path.read_text())) or ""
            assert "import" in said.lower(), module
            assert len(said.splitlines()) >= 3, module


def test_the_picture_is_current():
    """docs/architecture.md shows the imports as they are."""
    assert TARGET.read_text() == document(TARGET.read_text())
