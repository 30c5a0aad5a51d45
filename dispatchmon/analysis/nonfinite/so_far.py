"""
The search while the program still runs: what has done harm already, whatever comes.

Of a trace that is still being written a value that nobody has read may yet be read, and a gradient that overflowed may yet
be skipped. So only what cannot be taken back counts: a loss from which backward started, a parameter, a buffer, a state, and
the gradients of which the caller knows that they are about to be used.
"""

from __future__ import annotations

from dispatchmon.analysis.nonfinite.answer import NonFinite
from dispatchmon.analysis.nonfinite.find import answer_of, followed
from dispatchmon.analysis.nonfinite.findings import ALARM, READ_UNWRITTEN
from dispatchmon.analysis.nonfinite.rows import Wanted
from dispatchmon.analysis.nonfinite.search import Search
from dispatchmon.analysis.nonfinite.verdicts import settle
from dispatchmon.reading.query import Filters
from dispatchmon.reading.trace_files import TraceFiles

LAST_EVENTS = 8  # before an exception: what they made may have led to it


def harm_so_far(
    trace: TraceFiles, gradients: frozenset[int] = frozenset(), *, at_exception: bool = False
) -> NonFinite | None:
    """
    What `find_nonfinite` answers, if a NaN or Inf has done harm already; None if none has.

    Args:
        trace: one rank, as far as it was written.
        gradients: numbers of storages whose NaN and Inf an optimizer is about to use.
        at_exception: the program ended with one: what was made last and read by nobody is harm as well.
    """
    rank = trace.ranks[0]

    def keep(wanted: Wanted) -> None:
        for storage in gradients:
            wanted.last.pop(storage, None)  # what is known of it is asked for at the end

    found = followed(trace, rank, prepare=keep)
    everything = [(dict(finding.spread), dict(finding.ends)) for finding in found.findings]
    for finding in found.findings:
        finding.spread.pop("gradient", None)
        if not at_exception:
            finding.ends.clear()
    if at_exception:
        _keep_last(found, trace)
    for storage in gradients:
        _use(found, storage)
    settle(found)
    if not any(f.verdict == ALARM and f.kind != READ_UNWRITTEN for f in found.findings):
        return None
    for finding, (spread, ends) in zip(found.findings, everything, strict=True):  # now that there is harm
        finding.spread, finding.ends = spread | finding.spread, ends
    settle(found)
    return answer_of(trace, lambda _: found, Filters())


def _use(found: Search, storage: int) -> None:
    """An optimizer uses what this gradient descends from."""
    known = found.memory.storages.get(storage)
    roots = set() if known is None else {*known.whole, *known.cells}
    for root in roots:
        finding = found.findings[root]
        made = [w.event for w in found.writers.get(storage, ())] or [finding.event]
        finding.spread["gradient"] = made[-1], found.names.get(storage)


def _keep_last(found: Search, trace: TraceFiles) -> None:
    """Of the values that nobody went on with, leave those that were made shortly before the end."""
    last = max((batch["event"][-1].as_py() for batch in trace.scan(["event"]) if batch.num_rows), default=0)
    for finding in found.findings:
        finding.ends = {storage: event for storage, event in finding.ends.items() if event > last - LAST_EVENTS}
