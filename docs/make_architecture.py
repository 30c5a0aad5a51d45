"""
Draw the picture and the table of docs/architecture.md from the imports of the package.

    python docs/make_architecture.py [--check]

`FLOORS` is the one place that says which room may import which; tests/test_layers.py holds the package against it.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "dispatchmon"
CLI = ROOT / "cli" / "dispatchmon_cli"
TARGET = ROOT / "docs" / "architecture.md"
BLOCK = re.compile(r"(<!-- (?P<what>picture|rooms) -->\n).*?(?=<!-- end -->)", re.DOTALL)

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
WITHOUT_TORCH = (
    *("trace", "export", "analysis", "reading", "sink", "writing", "packed"),
    *("memory", "words", "schema", "errors", "version"),
)
# What everything stands on: drawn without arrows.
GROUND = ("memory", "words", "schema", "errors", "version", "torch_internals")


def modules() -> dict[str, Path]:
    """Every module of the package, by its name without `dispatchmon.`; a package stands for its `__init__`."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)] = path
    return found


MODULES = modules()


def imports(path: Path) -> set[str]:
    """What a file imports of the package, also inside functions and under TYPE_CHECKING, as names of MODULES."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            if node.level:
                raise ValueError(f"{path} has a relative import")
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


def arrows() -> dict[str, set[str]]:
    """Which rooms each room imports."""
    found: dict[str, set[str]] = {room(module): set() for module in MODULES}
    for module, path in MODULES.items():
        found[room(module)] |= {room(other) for other in imports(path)} - {room(module)}
    return found


def reduced(of: dict[str, set[str]]) -> dict[str, set[str]]:
    """The arrows that do not follow from others."""

    def reaches(start: str) -> Iterator[str]:
        for other in of[start]:
            yield other
            yield from reaches(other)

    return {start: others - {far for other in others for far in reaches(other)} for start, others in of.items()}


def picture() -> str:
    """The rooms as a Mermaid graph, without what follows from other arrows and without the ground."""
    drawn = {name: others for name, others in arrows().items() if name not in (*GROUND, "__init__", "__main__")}
    drawn = {name: {other for other in others if other in drawn} for name, others in drawn.items()}
    drawn["cli"] = {room(other) for path in CLI.glob("*.py") for other in imports(path)} & set(drawn)
    lines = ["```mermaid", "flowchart TD"]
    for name in sorted(drawn, key=lambda name: (-FLOOR.get(name, 99), name)):
        shape = f'{name}["{name}.py"]' if (PACKAGE / f"{name}.py").exists() else f'{name}("{name}/")'
        lines.append(f"    {shape}")
    for name, others in sorted(reduced(drawn).items()):
        lines += [f"    {name} --> {other}" for other in sorted(others)]
    return "\n".join([*lines, "```", ""])


def rooms() -> str:
    """What each room says of itself in its docstring, from the top down."""
    lines = ["| floor | room | what it is |", "|---|---|---|"]
    for floor in FLOORS[1:]:
        for name in floor:
            path = MODULES[name]
            said = ast.get_docstring(ast.parse(path.read_text())) or ""
            shown = f"`{name}.py`" if path.name != "__init__.py" else f"`{name}/`"
            lines.append(f"| {FLOOR[name]} | {shown} | {' '.join(said.partition(chr(10) * 2)[0].split())} |")
    return "\n".join([*lines, ""])


def document(text: str) -> str:
    """Return the text of docs/architecture.md with its drawn parts as they are now."""
    made = {"picture": picture, "rooms": rooms}
    return BLOCK.sub(lambda block: block[1] + made[block["what"]](), text)


if __name__ == "__main__":
    now = document(TARGET.read_text())
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(now)
    elif now != TARGET.read_text():
        raise SystemExit("docs/architecture.md is out of date: run `make docs`.")
