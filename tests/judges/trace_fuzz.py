"""
Damaged and crafted traces, in great number, put to every command.

    python tests/judges/trace_fuzz.py --count 5000 --seed 0

A mutation is drawn by its number alone, so one that failed is made again by `--seed NUMBER --count 1 --keep FOLDER`. *Damage*
changes the bytes of a file; then each command must fail with one line, warn, or answer as for the intact file. *Craft* writes
another file, with right checksums, whose texts and numbers make no sense; then there is no right answer, but there is no
traceback either, no signal, no minute and no gigabyte.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import pickle
import random
import resource
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from dispatchmon.reading.messages import walk
from dispatchmon.schema import CLOSING_KEY, METADATA_KEY, SCHEMA
from dispatchmon_cli import main
from folders import GOLD
from trace_factory import seal, write_texts

COMMANDS: dict[str, list[str]] = {
    "info": ["info"],
    "summarize": ["summarize", "--format", "json"],
    "by module": ["summarize", "--by", "module"],
    "audit": ["audit", "--format", "json"],
    "nonfinite": ["nonfinite", "--format", "json"],
    "structure": ["structure"],
    "show": ["show", "--format", "csv"],
    "one step": ["show", "--step", "1", "--limit", "5"],
    "csv": ["export", "--to", "csv", "-o", "out.csv", "--force"],
    "parquet": ["export", "--to", "parquet", "--partition", "rank,step", "-o", "out.parts", "--force"],
    "tensorboard": ["export", "--to", "tensorboard", "-o", "out.runs", "--force"],
}
FINDS = ("audit", "nonfinite")  # which end with 2 where they find something
MOST_LINES = 2  # on stderr
MOST_SECONDS, MOST_MEGABYTES = 30.0, 700  # of the processor, for all commands; at once
PROGRAM = """
import sys, torch, warnings
from torch import nn
from dispatchmon import DispatchMonitor
warnings.simplefilter("ignore")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))
optimizer = torch.optim.Adam(model.parameters())
with DispatchMonitor(model, sys.argv[1], record=("ops", "modules", "parameters"), quiet=True) as monitor:
    for step in range(3):
        optimizer.zero_grad()
        hidden = model[0](torch.randn(5, 3))
        view = hidden.T[1:]
        view.mul_(2)
        loss = model[2](model[1](hidden)).pow(2).mean() / (2 - step)
        loss = loss + torch.empty(2, 2).fill_(0).sqrt_().sum() * loss
        loss.backward()
        optimizer.step()
    kept = torch.ones(3, requires_grad=True)
    root = kept.exp()
    root.add_(1)
    try:
        root.sum().backward()
    except RuntimeError:
        pass
"""


class Outcome(NamedTuple):
    """What a command answered: its exit status, what it printed and wrote, what it said, and a traceback if there was one."""

    status: int | None
    out: str
    said: str
    broken: str


class Base(NamedTuple):
    """An intact trace: its bytes, rows and texts."""

    data: bytes
    rows: list[dict[str, Any]]
    metadata: str
    closing: str
    checked: bool


# ------------------------------------------------------------------------------------------------------------- damage
def bits(rng: random.Random, base: Base) -> bytes:
    """Some bits are others."""
    data = bytearray(base.data)
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def blocks(rng: random.Random, base: Base) -> bytes:
    """A block is empty, noise, another one, gone, or there twice."""
    data, size = base.data, rng.choice((1, 8, 64, 512, 4096))
    at = rng.randrange(len(data))
    other = rng.randrange(len(data))
    block = data[at : at + size]
    middle = rng.choice((bytes(len(block)), rng.randbytes(len(block)), data[other : other + size], b"", block + block))
    return data[:at] + middle + data[at + size :]


def ends(rng: random.Random, base: Base) -> bytes:
    """The file is cut, or goes on."""
    data = base.data
    if rng.random() < 0.7:
        return data[: rng.randrange(len(data))]
    return data + rng.choice((bytes(8), data, data[-200:], rng.randbytes(rng.randrange(1, 2000))))


def lengths(rng: random.Random, base: Base) -> bytes:
    """Numbers in the headers of messages, or in the footer, are extreme."""
    data = bytearray(base.data)
    for _ in range(rng.choice((1, 2, 4))):
        _put_number(rng, data)
    return bytes(data)


def _put_number(rng: random.Random, data: bytearray) -> None:
    with io.BytesIO(bytes(data)) as file, contextlib.suppress(ValueError):
        messages, _ = walk(file)
        message = rng.choice(messages)
        at = rng.randrange(message.start, message.body) // 4 * 4
        if rng.random() < 0.2:
            at = rng.randrange(messages[-1].stop, len(data) - 8) // 4 * 4
        form = rng.choice("<i <q <H".split())
        number = rng.choice((0, 1, -1, 2, 4, 8, 255, 1 << 15, 1 << 20, (1 << 31) - 1, -(1 << 31), (1 << 62) + 1, -(1 << 63)))
        raw = struct.pack("<q", number)[: struct.calcsize(form)]
        data[at : at + len(raw)] = raw


# ------------------------------------------------------------------------------------------------------------- craft
def sealed_lengths(rng: random.Random, base: Base) -> bytes:
    """The same as `lengths`, by someone who can compute a checksum."""
    return _sealed(lengths(rng, base))


def sealed_blocks(rng: random.Random, base: Base) -> bytes:
    """The bytes of the columns are others, by someone who can compute a checksum."""
    data = bytearray(base.data)
    with io.BytesIO(base.data) as file:
        message = rng.choice(walk(file)[0][1:])
    for _ in range(rng.choice((1, 4, 32))):
        if message.stop > message.body:
            data[rng.randrange(message.body, message.stop)] = rng.randrange(256)
    return _sealed(bytes(data))


def _sealed(data: bytes) -> bytes:
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(ValueError, OSError):
        path = Path(folder, "trace.arrow")
        path.write_bytes(data)
        return seal(path).read_bytes()
    return data


ODD_TEXTS = (
    "null", "true", "-1", "0", "1e999", "-Infinity", "NaN", "123456789012345678901234567890", "0.5", '""', '"\\ud800"', '"x"',
    "[]", "{}", "[[]]", '{"": null}', '"\\u202e=1+1"', "[null, 1, \"a\"]", "[" * 100_000, "[" * 2000 + "]" * 2000,
    '"' + "n" * 100_000 + '"', "9" * 5000, "",
)  # fmt: skip


def texts(rng: random.Random, base: Base) -> bytes:
    """Values in the metadata or in the closing statement are of another type, or missing."""
    found = {"metadata": base.metadata, "closing": base.closing}
    for which in rng.choice((("metadata",), ("closing",), ("metadata", "closing"))):
        found[which] = _other_text(rng, found[which])
    return _written(base.rows, base, **found)


def _other_text(rng: random.Random, text: str) -> str:
    if rng.random() < 0.05:
        return rng.choice(ODD_TEXTS)
    document = json.loads(text)
    if not isinstance(document, dict | list):  # it is odd already
        return rng.choice(ODD_TEXTS)
    for _ in range(rng.choice((1, 1, 3))):
        inner = document
        while True:
            keys = list(inner) if isinstance(inner, dict) else list(range(len(inner)))
            if not keys:
                break
            key = rng.choice(keys)
            if isinstance(inner[key], dict | list) and inner[key] and rng.random() < 0.7:
                inner = inner[key]
                continue
            if rng.random() < 0.2:
                del inner[key]
            else:
                inner[key] = f"⟨{rng.randrange(len(ODD_TEXTS))}⟩"
            break
    said = json.dumps(document, ensure_ascii=False)
    for i, odd in enumerate(ODD_TEXTS):
        said = said.replace(f'"⟨{i}⟩"', odd)
    return said


ODD_NUMBERS = (0, 1, -1, 2, 7, 255, 1 << 31, 10**9, 1 << 40, (1 << 62) - 1, 1 << 62, (1 << 63) - 1, -(1 << 63))
ODD_FLOATS = (float("nan"), float("inf"), -float("inf"), 1e308, -1e308, 5e-324, -0.0, 1.0)
ODD_WORDS = ("", "x", "aten", "aten.add_.Tensor", "a.b.c.d", "\u202e\x1b[2J", "=1+1", ".", "..", "input[99999]", "/etc/passwd:1")
ODD_LISTS = ([], [0], [-1], [1 << 62] * 3, [10**9], [0] * 1000, [None], [1] * 70, [1 << 32, 1 << 32], [2, 3])


def values(rng: random.Random, base: Base) -> bytes:
    """Single values of rows are odd."""
    rows = [dict(row) for row in base.rows]
    for _ in range(rng.choice((1, 1, 2, 5, 20))):
        row, field = rng.choice(rows), rng.choice(SCHEMA)
        row[field.name] = _odd(rng, field, row[field.name])
    return _written(rows, base)


def swapped(rng: random.Random, base: Base) -> bytes:
    """Rows have values of other rows, each of which is right by itself."""
    rows = [dict(row) for row in base.rows]
    for name in rng.sample(SCHEMA.names, rng.choice((1, 2, 4))):
        for _ in range(rng.choice((1, 5, 50))):
            one, other = rng.choice(rows), rng.choice(rows)
            if name != "event":
                one[name], other[name] = other[name], one[name]
    return _written(rows, base)


def places(rng: random.Random, base: Base) -> bytes:
    """Tensors are elsewhere in memory and of another size, as a tensor could be."""
    rows = [dict(row) for row in base.rows]
    for _ in range(rng.choice((1, 3, 30))):
        row = rng.choice(rows)
        shape = rng.choice(([1 << 33], [10**9], [1 << 20, 1 << 20], [3, 4], [0, 1 << 40], [], [2] * 40, [1 << 61], [5]))
        stride = rng.choice(([1], [0], [1 << 40], [1 << 20, 1], [7, 3], [1] * 40, [2]))
        numel = 1
        for size in shape:
            numel *= size
        row.update(shape=shape, stride=(stride * 40)[: len(shape)], numel=numel, offset=rng.choice((0, 1, 1 << 20, 1 << 50)))
        row["storage"] = rng.choice((row["storage"], 1, 2, 5))
        if row["nan"] is not None:
            row["nan"] = min(numel, rng.choice((0, 1, 1 << 40)))
            row.update(inf=0, posinf=0, zero=0)
        if rng.random() < 0.5:
            row["cells"] = None
    return _written(rows, base)


def arguments(rng: random.Random, base: Base) -> bytes:
    """What rows say of the arguments is of other types."""
    rows = [dict(row) for row in base.rows]
    having = [row for row in rows if row["arguments"]]
    wanted = rng.choice((having, [row for row in having if row["kind"] == "hazard"] or having))
    for _ in range(rng.choice((1, 3, 20))):
        row = rng.choice(wanted)
        with contextlib.suppress(ValueError, RecursionError):  # it is odd already
            row["arguments"] = _other_text(rng, row["arguments"])
    return _written(rows, base)


def _odd(rng: random.Random, field: pa.Field, old: Any) -> Any:
    if rng.random() < 0.15:
        return None
    if pa.types.is_integer(field.type):
        number = rng.choice((*ODD_NUMBERS, (old or 0) + 1, (old or 0) - 1))
        most = 1 << (field.type.bit_width - 1)
        return max(0 if pa.types.is_unsigned_integer(field.type) else -most, min(most - 1, number))
    if pa.types.is_floating(field.type):
        return rng.choice(ODD_FLOATS)
    if pa.types.is_boolean(field.type):
        return not old
    if pa.types.is_list(field.type):
        return rng.choice((*ODD_LISTS, list(reversed(old or [])), [*(old or []), 1]))
    if pa.types.is_binary(field.type):
        return rng.choice((b"", b"\x07", rng.randbytes(rng.choice((1, 9, 100, 5000))), bytes(reversed(old or b"")), b"\xff" * 49))
    return rng.choice((*ODD_WORDS, "y" * 10_000, (old or "")[::-1]))


def _written(rows: list[dict[str, Any]], base: Base, metadata: str | None = None, closing: str | None = None) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        said = base.metadata if metadata is None else metadata, base.closing if closing is None else closing
        return write_texts(Path(folder, "t"), rows, *said, sealed=base.checked, batch_rows=50).read_bytes()


DAMAGE: tuple[Callable[[random.Random, Base], bytes], ...] = (bits, blocks, ends, lengths)
CRAFT: tuple[Callable[[random.Random, Base], bytes], ...] = (
    sealed_lengths, sealed_blocks, texts, values, swapped, places, arguments)  # fmt: skip


# ------------------------------------------------------------------------------------------------------------- judging
def bases(folder: Path) -> list[Base]:
    """The intact traces: of a program with hazards and NaN, and the gold traces of the format's versions."""
    recorded = folder / "recorded.arrow"
    subprocess.run([sys.executable, "-c", PROGRAM, str(recorded)], check=True)
    return [_read(recorded), _read(GOLD / "trace-1.2.arrow"), _read(GOLD / "trace-1.0.arrow")]


def _read(path: Path) -> Base:
    with pa.ipc.open_file(path.read_bytes()) as file:
        pairs = [file.get_batch_with_custom_metadata(i) for i in range(file.num_record_batches)]
        text = file.schema.metadata[METADATA_KEY].decode()
        rows = pa.Table.from_batches([pair.batch for pair in pairs]).to_pylist()
        rows = [{name: row.get(name) for name in SCHEMA.names} for row in rows]
        closing = pairs[-1].custom_metadata[CLOSING_KEY].decode()
    return Base(path.read_bytes(), rows, text, closing, json.loads(text)["format"] != "1.0")


def outcomes(data: bytes) -> tuple[dict[str, Outcome], str]:
    """What each command answers to a file, and what was wrong with the process that asked them: a signal, time, memory."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "trace.arrow").write_bytes(data)
        theirs, ours = os.pipe()
        child = os.fork()
        if not child:
            os.close(theirs)
            _ask(folder, ours)
        os.close(ours)
        pieces, end = [], time.monotonic() + 20 * MOST_SECONDS
        while select.select([theirs], [], [], max(0, end - time.monotonic()))[0] and (piece := os.read(theirs, 1 << 16)):
            pieces.append(piece)
        os.close(theirs)
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
        _, status, used = os.wait4(child, 0)
    found = pickle.loads(b"".join(pieces)) if pieces else {}
    if status:
        return found, f"ended by {os.waitstatus_to_exitcode(status)}"
    if (seconds := used.ru_utime + used.ru_stime) > MOST_SECONDS:
        return found, f"took {seconds:.0f} s"
    if (megabytes := used.ru_maxrss // 1024) > MOST_MEGABYTES:
        return found, f"took {megabytes} MB"
    return found, ""


def _ask(folder: str, to: int) -> None:
    """In a process of its own: all commands, and no way back."""
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (int(2 * MOST_SECONDS),) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.chdir(folder)
        found = {}
        for name, (command, *options) in COMMANDS.items():
            out, said, broken, status = io.StringIO(), io.StringIO(), "", None
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
                try:
                    status = main([command, "trace.arrow", *options])
                except BaseException:
                    broken = traceback.format_exc()
            text = out.getvalue()
            if name == "csv" and not status:
                text += Path("out.csv").read_text()
            found[name] = Outcome(status, text, said.getvalue(), broken)
        with os.fdopen(to, "wb") as pipe:
            pickle.dump(found, pipe)
    finally:
        os._exit(0)


def faults(found: dict[str, Outcome], ill: str, intact: dict[str, Outcome] | None) -> list[str]:
    """What is wrong with the answers to a file; `intact` are those to the intact one, where they must be the same."""
    wrong = [ill] if ill else []
    for name, (status, out, said, broken) in found.items():
        lines = said.splitlines()
        if broken or "Traceback" in said:
            wrong.append(f"{name}: {(broken or said).strip()}")
        elif status not in ((0, 1, 2) if name in FINDS else (0, 1)):
            wrong.append(f"{name}: exit {status}, {said}")
        elif len(lines) > MOST_LINES or (status == 1 and not lines):
            wrong.append(f"{name}: {len(lines)} lines on stderr: {said}")
        elif intact is not None and status != 1 and not lines and (status, out) != intact[name][:2]:
            wrong.append(f"{name}: another answer without a warning")
    return wrong


def judge(numbers: range, keep: Path | None = None) -> Counter[str]:
    """Judge mutations, print what is wrong with them, and return how many there were of each kind, and of `wrong`."""
    with tempfile.TemporaryDirectory() as folder:
        originals = bases(Path(folder))
    intact = [outcomes(base.data)[0] for base in originals]
    for answers in intact:
        assert not faults(answers, "", None), answers
    counts: Counter[str] = Counter()
    for number in numbers:
        rng = random.Random(number)
        base = rng.choice(originals)
        mutate = rng.choice((*DAMAGE, *CRAFT))
        data = mutate(rng, base)
        found, ill = outcomes(data)
        same = mutate in DAMAGE and base.checked
        wrong = faults(found, ill, intact[originals.index(base)] if same else None)
        counts[mutate.__name__] += 1
        counts["answered"] += sum(each.status != 1 for each in found.values())
        counts["refused"] += sum(each.status == 1 for each in found.values())
        if keep is not None:
            (keep / f"{number}.arrow").write_bytes(data)
        if wrong:
            counts["wrong"] += 1
            print(f"mutation {number} ({mutate.__name__}), {len(data)} bytes:", *wrong, sep="\n  ", flush=True)
        if sys.stderr.isatty():
            print(f"\r{number - numbers.start + 1} of {len(numbers)}, {counts['wrong']} wrong", end="", file=sys.stderr)
    return counts


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="number of the first mutation")
    parser.add_argument("--keep", type=Path, help="keep the files in this folder")
    return parser.parse_args()


if __name__ == "__main__":
    given = _arguments()
    tally = judge(range(given.seed, given.seed + given.count), given.keep)
    print(", ".join(f"{n} {what}" for what, n in sorted(tally.items())))
    sys.exit(bool(tally["wrong"]))
