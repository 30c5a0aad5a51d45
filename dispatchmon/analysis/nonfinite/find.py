"""
`find_nonfinite`: from a trace to the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase

from dispatchmon.analysis.nonfinite.alike import grouped
from dispatchmon.analysis.nonfinite.answer import NonFinite
from dispatchmon.analysis.nonfinite.crossings import Crossings, crossings, linked
from dispatchmon.analysis.nonfinite.findings import (
    ALARM,
    CLEARED,
    EXTERNAL,
    HARMLESS,
    ORIGIN,
    READ_UNWRITTEN,
    TURNED,
    UNWRITTEN,
    Finding,
)
from dispatchmon.analysis.nonfinite.growth import REACH_BACK, growth
from dispatchmon.analysis.nonfinite.masks import mark_masks
from dispatchmon.analysis.nonfinite.places import Largest, Link, Note, Origin, Place
from dispatchmon.analysis.nonfinite.results import results_of_the_model
from dispatchmon.analysis.nonfinite.rows import (
    Wanted,
    events,
    events_between,
    events_by_number,
    parameters_of,
    survey,
)
from dispatchmon.analysis.nonfinite.search import Search
from dispatchmon.analysis.nonfinite.underflow import underflow
from dispatchmon.analysis.nonfinite.vanish import vanishings
from dispatchmon.analysis.nonfinite.verdicts import settle
from dispatchmon.analysis.nonfinite.words import Teller
from dispatchmon.reading.query import Filters
from dispatchmon.reading.trace_files import TraceFiles
from dispatchmon.words.figures import figure
from dispatchmon.words.nonfinite import operator_at, when

MOST_GROWTHS = 3  # overflows whose growth is looked up


def find_nonfinite(
    trace: TraceFiles, filters: Filters | None = None, *, on_progress: Callable[[float], None] | None = None
) -> NonFinite:
    """
    Find where the non-finite values of a trace began.

    Args:
        trace: the trace.
        filters: which of the findings are wanted, by the place where they began; ranks choose what is read. What led to
            them and where they went is followed through the whole trace.
        on_progress: called while reading, with the part that is done, from 0 to 1.

    Raises:
        NotATraceError: the trace is damaged.
    """
    return answer_of(trace, lambda rank: search(trace, rank, on_progress), filters or Filters())


def answer_of(trace: TraceFiles, search_of: Callable[[int], Search], filters: Filters) -> NonFinite:
    """The searches of all ranks as one answer."""
    ranks = [rank for rank in trace.ranks if not filters.ranks or rank in filters.ranks]
    found = [_of_rank(trace, rank, search_of(rank), filters) for rank in ranks]
    answers = [answer for answer, _ in found]
    sent = [each for _, crossings in found for each in crossings.sent]
    linked_origins = [
        linked(o, c.brought.get(o.event), sent) if o.kind == "external" else o for a, c in found for o in a.origins
    ]
    origins = tuple(sorted(linked_origins, key=_order))
    return NonFinite(
        first=origins[0] if origins else None,
        origins=origins,
        deliberate=tuple(sorted((d for a in answers for d in a.deliberate), key=_order)),
        vanished=tuple(sorted((v for a in answers for v in a.vanished), key=_order)),
        uninitialised=tuple(sorted((u for a in answers for u in a.uninitialised), key=_order)),
        notes=tuple(n for a in answers for n in a.notes),
        largest=max((a.largest for a in answers if a.largest is not None), key=lambda x: x.magnitude, default=None),
        tensors=sum(a.tensors for a in answers),
        unmeasured=sum(a.unmeasured for a in answers),
        ranks=tuple(ranks),
        warnings=trace.warnings,
    )


def _order(place: Place) -> tuple[int, bool, int, int]:
    """Order of events; ranks number theirs by themselves, and what a collective brought comes after what was sent."""
    follows = place.follows if isinstance(place, Origin) else None
    return place.step, follows is not None and follows.rank != place.rank, place.event, place.rank


def search(trace: TraceFiles, rank: int, on_progress: Callable[[float], None] | None = None) -> Search:
    """Follow every non-finite value of one rank, and judge where it began."""
    found = followed(trace, rank, on_progress)
    settle(found)
    return found


def followed(
    trace: TraceFiles,
    rank: int,
    on_progress: Callable[[float], None] | None = None,
    prepare: Callable[[Wanted], None] = lambda wanted: None,
) -> Search:
    """Follow every non-finite value of one rank."""
    wanted = survey(trace, rank, on_progress)
    found = Search(wanted, parameters_of(trace, rank))
    if wanted.storages:
        prepare(wanted)
        found.run(events(trace, rank, found.followed, wanted.scaler))
        mark_masks(trace, rank, found)
    return found


def _of_rank(trace: TraceFiles, rank: int, found: Search, filters: Filters) -> tuple[NonFinite, Crossings]:
    wanted = [f for f in found.findings if f.kind != UNWRITTEN and _matches(f, filters)]
    looked_up = events_by_number(trace, rank, _needed(found, wanted))
    teller = Teller(found, rank, looked_up.get, lambda: results_of_the_model(trace, rank))
    alarms = [f for f in wanted if f.verdict == ALARM and f.kind != READ_UNWRITTEN]
    alarms.sort(key=lambda f: f.event)
    overflows = [f for f in alarms if f.kind == ORIGIN and f.what == "inf"][:MOST_GROWTHS]
    groups = grouped(found, alarms)
    origins = [
        teller.origin(g.findings, _growth(trace, rank, teller, g.first) if g.first in overflows else (), g.follows)
        for g in groups
    ]
    cleared = [f for f in wanted if f.verdict == CLEARED and f.kind in (ORIGIN, EXTERNAL, TURNED)]
    vanished = [teller.vanished(each) for each in vanishings(trace, rank, found, cleared)]
    lines = {(each.op, each.module, each.source) for each in vanished}
    notes = [teller.cleared(f) for f in cleared if (f.row.op, f.row.module, f.row.source) not in lines]
    notes += _about_scaler(found, rank, [f for f in wanted if f.verdict == HARMLESS])
    notes += underflow(trace, rank, filters)
    if found.stopped is not None:
        at = f"event {found.stopped.event}, step {found.stopped.step}"
        notes.append(
            Note("not-followed", f"there is more NaN and Inf than is followed; what comes after {at} was not looked at")
        )
    largest = found.wanted.largest
    answer = NonFinite(
        origins=tuple(origins),
        vanished=tuple(vanished),
        deliberate=tuple(teller.deliberate(f) for f in wanted if f.is_mask and f.verdict != ALARM),
        uninitialised=tuple(
            teller.uninitialised(f, f.verdict == ALARM) for f in wanted if f.kind == READ_UNWRITTEN),
        notes=tuple(notes),
        largest=None if largest is None else Largest(
            *teller.parts(largest), magnitude=largest.magnitude or 0.0, dtype=largest.dtype),
        tensors=found.wanted.tensors,
        unmeasured=found.wanted.unmeasured,
    )  # fmt: skip
    return answer, crossings(trace, rank, found, groups, origins)


def _matches(found: Finding, filters: Filters) -> bool:
    row = found.row
    start, stop = filters.steps
    return (
        (start is None or row.step >= start)
        and (stop is None or row.step < stop)
        and (not filters.modules or any(row.module is not None and fnmatchcase(row.module, g) for g in filters.modules))
        and (not filters.ops or any(fnmatchcase(row.op, g) for g in filters.ops))
        and (not filters.phases or row.phase in filters.phases)
    )


def _needed(found: Search, wanted: list[Finding]) -> set[int]:
    """Numbers of the events that the answer speaks of and the search did not keep."""
    numbers = {f.row.forward_event for f in wanted if f.row.forward_event is not None}
    numbers |= {n for f in wanted for n in f.cleared_by[:1]} | {f.event for f in wanted}
    numbers |= {at for f in found.findings for at, _ in f.spread.values()}
    return numbers - set(found.events)


def _growth(trace: TraceFiles, rank: int, teller: Teller, found: Finding) -> tuple[Link, ...]:
    overflow = teller.event(found.event)
    if overflow is None:
        return ()
    before = events_between(trace, rank, found.event - REACH_BACK, found.event)
    links = []
    for row in growth(overflow, before):
        message = f"{operator_at(row.op, row.module)} made values up to {figure(row.magnitude or 0.0)} "
        links.append(Link(*teller.parts(row), message=message + when(row.source, row.step, row.phase)))
    return tuple(links) if len(links) > 1 else ()


def _about_scaler(found: Search, rank: int, harmless: list[Finding]) -> list[Note]:
    skipped = sum(on for _, on in found.scaler)
    if not skipped:
        return []
    text = f"GradScaler skipped {skipped} of {len(found.scaler)} steps on purpose: their scaled gradients overflowed"
    place = None
    if harmless:
        row = min(harmless, key=lambda f: f.event).row
        place = Place(row.event, rank, row.step, row.phase, row.op, row.module, row.source)
        text += f", first in {operator_at(row.op, row.module)} {when(row.source, row.step, row.phase)}"
    return [Note("skipped-steps", text, place)]
