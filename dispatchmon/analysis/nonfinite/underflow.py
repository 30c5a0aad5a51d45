"""
Values that became zero where they were cast to a smaller range.
"""

from __future__ import annotations

from collections.abc import Iterator

from dispatchmon.analysis.nonfinite.places import Note, Place
from dispatchmon.reading.query import Filters, query
from dispatchmon.reading.trace_files import TraceFiles
from dispatchmon.words.nonfinite import operator_at, when

SHARE = 0.01  # of the elements, from which on it is said

_CAST = "aten._to_copy.default"
_SQL = f"""
SELECT event, any_value(step) AS step, any_value(phase) AS phase, any_value(op) AS op, any_value(module) AS module,
    any_value(source) AS source, max(zero) FILTER (role = 'output') - max(zero) FILTER (role = 'input') AS lost,
    max(numel) AS numel, any_value(dtype) FILTER (role = 'output') AS dtype
FROM trace WHERE kind = 'op' AND op = '{_CAST}' AND zero IS NOT NULL
GROUP BY event
HAVING any_value(dtype) FILTER (role = 'output') IN ('float16', 'bfloat16')
    AND any_value(dtype) FILTER (role = 'input') IN ('float32', 'float64') AND lost > $share * max(numel)
ORDER BY lost / max(numel) DESC, event LIMIT 1
"""
_COLUMNS = ("event", "kind", "step", "phase", "op", "module", "source", "role", "zero", "numel", "dtype")


def underflow(trace: TraceFiles, rank: int, filters: Filters) -> Iterator[Note]:
    """The cast that lost most, if it lost more than a hundredth of a value."""
    of_rank = Filters(filters.steps, filters.modules, filters.ops, filters.phases, (rank,))
    for row in query(trace, _SQL, _COLUMNS, of_rank, values={"share": SHARE}, within={"op": frozenset({_CAST})}):
        place = Place(row["event"], rank, row["step"], row["phase"], row["op"], row["module"], row["source"])
        yield Note(
            "underflow",
            f"{row['lost']} of {row['numel']} elements became 0 in {row['dtype']} in "
            f"{operator_at(place.op, place.module)} {when(place.source, place.step, place.phase)}",
            place,
        )
