"""
Write the program output that the documents show, by running the commands beside it.

A block is a comment that names a command, and the fenced block below it that holds what the command prints:

    <!-- output: dispatchmon info digits.arrow -->
    ```text
    …
    ```

Commands run in the order in which they stand, in an empty folder that has only `examples/` in it. With `--check`
nothing is written: each block is compared with what its command prints now, except for decimals, times and sizes,
which depend on the machine.

    python docs/make_outputs.py [--check]
"""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = ("README.md", "docs/nonfinite.md", "docs/audit.md")
BLOCK = re.compile(r"(<!-- output: (?P<command>.+?) -->\n```text\n)(?P<output>.*?)(?=```$)", re.DOTALL | re.MULTILINE)
VARIABLE = re.compile(r"\d+(\.\d+)?e[+-]?\d+|\d+\.\d+|\d+(?= ?(?:[nµm]?s|%|[kMG]?B)(?!\w))")


def run(command: str, folder: Path) -> str:
    """Return what the command prints, on either stream, in a terminal-like environment without colours."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    terminal = {"COLUMNS": "110", "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}
    environment = os.environ | terminal | {"PATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode not in (0, 2):  # 2: something was found
        raise SystemExit(f"`{command}` ended with status {done.returncode}:\n{done.stdout}")
    return "\n".join(line.rstrip() for line in done.stdout.strip("\n").splitlines()) + "\n"


def scrub(text: str) -> list[str]:
    """Return the lines of text without what may differ from run to run: variable numbers and their padding."""
    lines = (re.sub(r"[ ─━]+", " ", VARIABLE.sub("#", line)).strip() for line in text.splitlines())
    return [re.sub(r"# ?([nµm]?s|%|[kMG]?B)(?!\w)", "#", line) for line in lines]


def blocks(folder: Path) -> Iterator[tuple[Path, re.Match[str], str]]:
    """Run the command of every block; yield its document, the block and the command's output."""
    (folder / "examples").symlink_to(ROOT / "examples")
    for document in (ROOT / name for name in DOCUMENTS):
        for block in BLOCK.finditer(document.read_text()):
            yield document, block, run(block["command"], folder)


def differences(folder: Path) -> str:
    """Return, as a readable diff, how the documents differ from what the commands print; empty if they do not."""
    found: list[str] = []
    for document, block, output in blocks(folder):
        old, new = scrub(block["output"]), scrub(output)
        title = f"{document.name}: {block['command']}"
        found += difflib.unified_diff(old, new, title, "what it prints now", lineterm="")
    return "\n".join(found)


def main() -> None:
    """Write the blocks again, or check them."""
    with tempfile.TemporaryDirectory() as name:
        if "--check" in sys.argv[1:]:
            if found := differences(Path(name)):
                raise SystemExit(f"{found}\nThe documents are out of date: run `make docs`.")
            return
        for document, block, output in list(blocks(Path(name))):
            if scrub(block["output"]) == scrub(output):
                continue  # new timings alone are no change
            text = document.read_text()
            document.write_text(text.replace(block[0], block[1] + output, 1))
            print(f"{document.name}: {block['command']}")


if __name__ == "__main__":
    main()
