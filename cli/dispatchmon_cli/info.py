"""
`dispatchmon info`: what a trace is.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import click

from dispatchmon.reading.trace_file import TraceFile
from dispatchmon.words.figures import count, counted, duration, number, size
from dispatchmon.words.tables import Cells
from dispatchmon_cli.options import Request, reads_trace

_FROM_METADATA = (
    *("format", "dispatchmon", "torch", "python", "platform", "statistics_backend", "threads", "flush"),
    *("started", "command"),
)
_FROM_CLOSING = ("events", "rows", "steps", "writes", "undeclared_writes", "monitor_ns", "wait_ns", "kept_for_good")
_BACKENDS = {
    "native": "in one pass, by the C kernel",
    "torch": "by torch's own reductions",
    "deferred": "as on a device",
}
_COLUMNS = (
    *("file", "bytes", "complete", "closed", "reason", "rank", "world_size", "model", "modules", "parameters"),
    *_FROM_CLOSING,
    *("skipped", "settings"),
    *_FROM_METADATA,
)


@click.command()
@reads_trace(filters=False)
def command(request: Request) -> None:
    """What a trace is: version, environment, completeness, cost."""
    with request.open_report() as report:
        trace = request.open_trace()
        records = [_record(file) for file in trace.files]
        report.write(
            document={
                "format": 1,
                "complete": trace.complete,
                "ranks": list(trace.ranks),
                "files": records,
                "warnings": list(trace.warnings),
            },
            records=records,
            columns=_COLUMNS,
            cells=Cells(("", ""), [row for record in records for row in _rows(record)], numeric=False),
        )


def _record(file: TraceFile) -> dict[str, Any]:
    metadata, closing = file.metadata, file.closing or {}
    return {
        "file": str(file.path),
        "bytes": file.size,
        "complete": file.complete,
        "closed": not file.cut,
        "reason": closing.get("reason"),
        "rank": file.rank,
        "world_size": file.world_size,
        "model": metadata.get("model"),
        "modules": len(metadata.get("modules") or ()),
        "parameters": len(metadata.get("parameters") or ()),
        **{name: closing.get(name) for name in _FROM_CLOSING},
        "rows": file.rows,
        "skipped": file.skipped,
        "settings": metadata.get("settings"),
        **{name: metadata.get(name) for name in _FROM_METADATA},
    }


def _rows(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Say what one file is, line by line; what is not known has no line."""

    def known(name: str, say: Any = str) -> str | None:
        return None if record[name] is None else say(record[name])

    parts = [known("events", lambda n: counted(n, "event")), known("rows", lambda n: counted(n, "row"))]
    parts += [
        known("steps", lambda n: counted(n, "step")),
        known("writes", lambda n: counted(n, "write") + " in place"),
    ]
    model = f"{counted(record['modules'], 'module')}, {counted(record['parameters'], 'parameter')}"
    versions = [f"{name} {record[name]}" for name in ("dispatchmon", "torch", "python") if record[name]]
    cost = [known("monitor_ns", lambda n: f"{duration(n)} in the monitor")]
    cost += [known("wait_ns", lambda n: f"{duration(n)} waiting for the disk")]
    measured = [known("statistics_backend", _BACKENDS.get), known("threads", lambda n: counted(n, "thread"))]
    lines = {
        "file": f"{record['file']} ({size(record['bytes'])}, format {record['format']})",
        "complete": _completeness(record),
        "contents": ", ".join(filter(None, parts)),
        "not seen": ", ".join(f"{count(n)} {why}" for why, n in record["skipped"].items()),
        "rank": f"{record['rank']} of {record['world_size']}",
        "model": f"{record['model']} ({model})" if record["model"] else "none was given",
        "started": known("started"),
        "command": known("command", lambda words: words if isinstance(words, str) else shlex.join(map(str, words))),
        "versions": ", ".join(versions),
        "platform": known("platform"),
        "statistics": ", ".join(filter(None, measured)) if record["statistics_backend"] else "none were taken",
        "written": known("flush", lambda each: f"every {counted(each['rows'], 'row')} or {number(each['seconds'])} s"),
        "kept": known("kept_for_good", _kept),
        "settings": known("settings", lambda all_of: ", ".join(f"{k}={_plain(v)}" for k, v in all_of.items())),
        "cost": ", ".join(filter(None, cost)),
    }
    yield from ((label, line) for label, line in lines.items() if line)


def _kept(ranges: Mapping[str, Any]) -> str:
    names = {"nan": "NaN", "inf": "Inf"}
    return ", ".join(f"steps {a} to {b} for the first {names.get(what, what)}" for what, (a, b) in ranges.items())


def _completeness(record: Mapping[str, Any]) -> str:
    if record["complete"]:
        return "yes"
    if not record["closed"]:
        return "no: the file was not closed"
    return f"no: {record['reason'] or 'the file does not say why'}"


def _plain(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
