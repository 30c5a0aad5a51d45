"""
A summary is what one plain SQL statement over all rows at once says, and costs one scan.
"""

from __future__ import annotations

import random
from dataclasses import asdict

import duckdb
import pytest

from dispatchmon.analysis.summary import BY, SORTS, summarize
from dispatchmon.reading.query import Filters
from dispatchmon.trace import open_trace
from trace_factory import write_trace

MAGNITUDE = "greatest(abs(min), abs(max))"
MADE = "coalesce(NOT (written AND role = 'input'), true)"
READ = (
    "coalesce(NOT (written AND role = 'input' AND (mutation = 'out' OR regexp_matches(op, '^aten\\.(copy_|fill_)\\.'))), true)"
)
REAL = "(dtype LIKE '%float%' OR dtype LIKE 'complex%')"
GROUPS = """
SELECT *, count(*) OVER (PARTITION BY is_total) AS groups FROM (
    SELECT
        {by} AS key,
        grouping({by}) AS is_total,
        count(arguments) AS calls,
        count(arguments) FILTER (mutation <> 'none') AS writes,
        coalesce(sum(duration_ns) FILTER (arguments IS NOT NULL), 0) AS time_ns,
        count(*) AS "rows",
        max({magnitude}) FILTER (WHERE {read}) AS magnitude,
        sum(nan) FILTER (WHERE {read}) AS nan,
        sum(inf) FILTER (WHERE {read}) AS inf,
        count(DISTINCT step) AS steps,
        count(DISTINCT rank) AS ranks,
        count(arguments) FILTER (mutation = 'inplace') AS inplace,
        count(arguments) FILTER (mutation = 'out') AS out,
        count(arguments) FILTER (mutation = 'other') AS other,
        count(arguments) FILTER (mutation = 'undeclared') AS undeclared,
        count(dtype) AS tensors,
        count(dtype) FILTER (nan IS NULL AND inf IS NULL AND min IS NULL AND max IS NULL) AS without_statistics,
    FROM trace WHERE kind = 'op' AND {condition} GROUP BY GROUPING SETS (({by}), ())
) ORDER BY is_total DESC, {order}, key NULLS LAST
"""
ORDER = {sort: f"{sort} DESC NULLS LAST" for sort in SORTS} | {"time": "time_ns DESC", "name": "key NULLS LAST"}
FIRST = (
    "SELECT step, event, rank, role, arg FROM trace WHERE kind = 'op' AND {condition} AND {made} AND (nan > 0 OR inf > 0) "
    "ORDER BY step, event, rank LIMIT 1"
)
LARGEST = (
    "WITH these AS (SELECT *, {magnitude} AS magnitude FROM trace WHERE kind = 'op' AND {condition} AND {made} AND {real}) "
    "SELECT step, event, rank, magnitude FROM these WHERE magnitude = (SELECT max(magnitude) FROM these) "
    "ORDER BY step, event, rank LIMIT 1"
)


def any_rows(chance, rank, n):
    """Rows of every sort, a third of whose values are null; sums of their numbers need more than 53 bits."""

    def or_null(value):
        return None if chance.random() < 0.3 else value

    for i in range(n):
        numel = or_null(1 << 60)
        low = or_null(chance.choice([-4.0, -1.5, 0.0, 2.0]))
        yield {
            "event": i // 3,
            "kind": chance.choice(["op", "op", "op", "module", "hazard"]),
            "rank": rank,
            "step": i // 20,
            "phase": chance.choice(["forward", "backward"]),
            "module": or_null(chance.choice(["", "head", "körper"])),
            "op": chance.choice(["aten.copy_.default", "aten.fill_.Scalar", "aten.add.Tensor", "aten.copy.default"]),
            "arguments": or_null("{}"),
            "mutation": chance.choice(["none", "inplace", "out", "other", "undeclared"]),
            "role": or_null(chance.choice(["input", "output"])),
            "arg": f"out{i % 3}",
            "written": chance.random() < 0.5,
            "dtype": or_null(chance.choice(["float32", "bfloat16", "complex64", "int64"])),
            "numel": numel,
            "min": low,
            "max": None if low is None else low + 1.0,
            "nan": or_null(chance.choice([0, 0, 3, (1 << 58) + 1])) if numel else None,
            "inf": or_null(chance.choice([0, 0, (1 << 58) + 7])) if numel else None,
            "duration_ns": or_null((1 << 57) + chance.randrange(1000)),
            "source": or_null(chance.choice(["a.py:1 in f", "b.py:2 in g"])),
        }


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """Two ranks of batches of seven rows."""
    folder, chance = tmp_path_factory.mktemp("any"), random.Random(3)
    for rank in (0, 1):
        rows = any_rows(chance, rank, 240)
        write_trace(folder / f"{rank}.arrow", rows, metadata={"rank": rank, "world_size": 2}, batch_rows=7)
    return open_trace(folder)


def asked(trace, sql, **words):
    """Ask DuckDB alone, of all rows."""
    with duckdb.connect() as connection:
        connection.register("trace", trace.scan().read_all())
        words = {"magnitude": MAGNITUDE, "made": MADE, "read": READ, "real": REAL, **words}
        answer = connection.execute(sql.format(**words))
        names = [column[0] for column in answer.description]
        return [dict(zip(names, row, strict=True)) for row in answer.fetchall()]


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize(
    ("filters", "condition"), [(Filters(), "true"), (Filters(steps=(3, 8), where="arg <> 'out1'"), "step >= 3 AND step < 8 AND arg <> 'out1'")]
)  # fmt: skip
def test_a_summary_is_what_sql_says(trace, by, sort, filters, condition):
    """Groups in their order, totals, writes, and what stands out."""
    total, *groups = asked(trace, GROUPS, by=by, order=ORDER[sort], condition=condition)
    found = summarize(trace, by, filters, sort)
    assert [asdict(group) for group in found.groups] == [{k: row[k] for k in asdict(found.groups[0])} for row in groups]
    assert asdict(found.totals) == {k: total[k] for k in asdict(found.totals) if k != "groups"} | {"groups": len(groups)}
    out = found.stands_out
    assert asdict(out.writes) == {k: total[k] for k in asdict(out.writes)}
    assert (out.tensors, out.without_statistics) == (total["tensors"], total["without_statistics"])
    for seen, sql in ((out.first_nonfinite, FIRST), (out.largest, LARGEST)):
        (row,) = asked(trace, sql, condition=condition)
        assert {name: getattr(seen, name) for name in row} == row
