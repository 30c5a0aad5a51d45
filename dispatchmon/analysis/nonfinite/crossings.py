"""
From rank to rank: which collective brought a NaN or Inf, and which origin on another rank had sent it.

Ranks number their events by themselves. The same collective is the nth of the same operator at the same line in the same
step on each of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from dispatchmon.analysis.nonfinite.alike import Alike
from dispatchmon.analysis.nonfinite.places import Link, Origin, Place
from dispatchmon.analysis.nonfinite.rows import Row
from dispatchmon.analysis.nonfinite.search import Search
from dispatchmon.reading.query import Filters, query
from dispatchmon.reading.trace_files import TraceFiles
from dispatchmon.words.nonfinite import operator_at, when

Key = tuple[int, str, str | None, int]  # step, operator, line, how many of these came before
_SQL = """
SELECT event, any_value(step) AS step, any_value(op) AS op, any_value(source) AS source FROM trace
WHERE kind = 'op' AND op LIKE '%c10d%' GROUP BY event ORDER BY event
"""


@dataclass
class Crossings:
    """What one rank sent to the others, and what came to it."""

    sent: list[tuple[Key, Origin]]
    brought: dict[int, Key]  # event of an origin from outside -> the collective that brought it


def crossings(trace: TraceFiles, rank: int, search: Search, groups: list[Alike], origins: list[Origin]) -> Crossings:
    """The collectives in which a rank sent an origin, and those that brought it one."""
    of = {f.number: origin for group, origin in zip(groups, origins, strict=True) for f in group.findings}
    arrived = [g.first.collective for g in groups if g.first.collective is not None]
    known = keys(trace, rank, [*arrived, *(row for row, _ in search.sent)])
    sent = []
    for row, roots in search.sent:
        made_of = roots | {f.number for n in roots for f in search.ancestors(search.findings[n])}
        senders = [of[n] for n in made_of if n in of]
        if senders and row.event in known:
            sent.append((known[row.event], min(senders, key=lambda o: o.event)))
    return Crossings(sent, {row.event: known[row.event] for row in arrived if row.event in known})


def keys(trace: TraceFiles, rank: int, rows: Iterable[Row]) -> dict[int, Key]:
    """What to know these collectives by on every rank, by event."""
    wanted = {row.event for row in rows}
    if not wanted or len(trace.ranks) < 2:
        return {}
    found, before = {}, Counter[tuple[int, str, str | None]]()
    for row in query(trace, _SQL, ("kind", "event", "step", "op", "source"), Filters(ranks=(rank,))):
        call = row["step"], row["op"], row["source"]
        if row["event"] in wanted:
            found[row["event"]] = (*call, before[call])
        before[call] += 1
    return found


def linked(origin: Origin, key: Key | None, sent: Iterable[tuple[Key, Origin]]) -> Origin:
    """The origin with the one on another rank that it came from, if there is one."""
    sender = next((other for k, other in sent if k == key and other.rank != origin.rank), None)
    if key is None or sender is None:
        return origin
    verb = "made" if sender.kind in ("made", "turned") else "first read"
    where = f"{operator_at(sender.op, sender.module)} {when(sender.source, sender.step, sender.phase)}"
    place = Place(sender.event, sender.rank, sender.step, sender.phase, sender.op, sender.module, sender.source)
    link = Link(
        sender.event, sender.rank, sender.step, sender.phase, sender.op, sender.module, sender.source,
        message=f"{sender.message} (rank {sender.rank})")  # fmt: skip
    text = f"{origin.message}; it was {verb} on rank {sender.rank} by {where}"
    return replace(origin, message=text, cause=(link,), follows=place)
