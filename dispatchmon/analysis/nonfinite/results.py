"""
What the model returned: the memory that the last operator of each of its outermost calls wrote.
"""

from __future__ import annotations

from dispatchmon.analysis.nonfinite.rows import events_by_number
from dispatchmon.reading.query import Filters, query
from dispatchmon.reading.trace_files import TraceFiles

_SQL = """
SELECT max(event) FILTER (phase = 'forward' AND module IS NOT NULL) AS event, max(event) AS latest FROM trace
WHERE kind = 'op' GROUP BY step, micro_step
"""


def results_of_the_model(trace: TraceFiles, rank: int) -> frozenset[int]:
    """The storages of the model's results. Of a call that the end of the trace cut short nothing is known."""
    columns = ("kind", "phase", "module", "event", "step", "micro_step")
    calls = list(query(trace, _SQL, columns, Filters(ranks=(rank,))))
    latest = max((call["latest"] for call in calls), default=-1)
    numbers = {call["event"] for call in calls if call["event"] is not None}
    if not all(file.complete for file in trace.files if file.rank == rank):
        numbers.discard(latest)
    found = events_by_number(trace, rank, numbers)
    return frozenset(row.storage for event in found.values() for row in event.outputs if row.storage is not None)
