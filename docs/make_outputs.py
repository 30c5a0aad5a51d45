"""
Write the program output that the documents show, by running the commands beside it.

A block is a comment that names a command, and the fenced block below it that holds what the command prints:

    <!-- output: dispatchmon info digits.arrow -->
    ```text
    …
    ```

Commands run in the order in which they stand, in an empty folder that has only `examples/` in it. With `--check`
nothing is written: each block is compared with what its command prints now. Words and counts must be the same; times
depend on the machine; measured numbers, shares and sizes depend on how a processor rounds, and must be near.

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
DURATION = r"\d+ h \d+ min(?!\w)|\d+ min \d+ s(?!\w)|\d+(?:\.\d+)? ?[nµm]?s(?!\w)"
NUMBER = re.compile(rf"(?P<time>{DURATION})|(?P<value>-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?: ?(?P<unit>%|[kMG]?B)(?!\w))?")
BYTES = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9}
# Vector and scalar code, of one library or another, differ by 1 % after the 60 steps of the longest example.
NEAR, NEAR_SHARE, NEAR_SIZE = 0.05, 2.0, 100_000.0


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


def words(line: str) -> str:
    """The line without its numbers, but with what they are, and without its padding."""

    def kind(match: re.Match[str]) -> str:
        return "#time" if match["time"] else "#%" if match["unit"] == "%" else "#B" if match["unit"] else "#"

    return re.sub(r"[ ─━]+", " ", NUMBER.sub(kind, line)).strip()


def near(one: re.Match[str], other: re.Match[str]) -> bool:
    """Whether two numbers of the same kind could be of the same program on two machines."""
    if one["time"]:
        return True
    a, b = float(one["value"]), float(other["value"])
    if one["unit"] == "%":
        return abs(a - b) <= NEAR_SHARE
    if one["unit"]:
        a, b = a * BYTES[one["unit"]], b * BYTES[other["unit"]]
        return abs(a - b) <= NEAR * max(a, b) + NEAR_SIZE
    if one["value"].lstrip("-").isdigit() and other["value"].lstrip("-").isdigit():  # counts, lines, whole values
        return one["value"] == other["value"]
    return abs(a - b) <= NEAR * max(abs(a), abs(b)) + 10.0 ** -max(decimals(one["value"]), decimals(other["value"]))


def decimals(value: str) -> int:
    """How many places after the point a number was rounded to."""
    mantissa, _, exponent = value.partition("e")
    return len(mantissa.partition(".")[2]) - int(exponent or 0)


def alike(one: str, other: str) -> bool:
    """Whether two lines say the same, what depends on the machine aside."""
    pairs = zip(NUMBER.finditer(one), NUMBER.finditer(other), strict=False)
    return words(one) == words(other) and all(near(*pair) for pair in pairs)


def difference(shown: str, printed: str, title: str = "") -> list[str]:
    """How what a document shows differs from what the program prints, as lines of a diff; none if it does not."""
    old, new = shown.splitlines(), printed.splitlines()
    if len(old) == len(new):
        new = [a if alike(a, b) else b for a, b in zip(old, new, strict=True)]
    return list(difflib.unified_diff(old, new, title, "what it prints now", lineterm=""))


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
        found += difference(block["output"], output, f"{document.name}: {block['command']}")
    return "\n".join(found)


def main() -> None:
    """Write the blocks again, or check them."""
    with tempfile.TemporaryDirectory() as name:
        if "--check" in sys.argv[1:]:
            if found := differences(Path(name)):
                raise SystemExit(f"{found}\nThe documents are out of date: run `make docs`.")
            return
        for document, block, output in list(blocks(Path(name))):
            if not difference(block["output"], output):
                continue  # other timings and another rounding alone are no change
            text = document.read_text()
            document.write_text(text.replace(block[0], block[1] + output, 1))
            print(f"{document.name}: {block['command']}")


if __name__ == "__main__":
    main()
