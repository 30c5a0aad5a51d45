"""
A trace to ask questions: the door for readers, in a program or a notebook.

    trace = open_trace("trace.arrow")
    print(trace.summarize(by="module"))
    trace.sql("SELECT op, max(max) FROM trace GROUP BY op")

Nothing here loads a whole trace, except what is asked for as a table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dispatchmon.analysis.audit import Audit, audit
from dispatchmon.analysis.nonfinite import NonFinite, find_nonfinite
from dispatchmon.analysis.structure import Structure, structure
from dispatchmon.analysis.summary import BY, SORTS, By, Sort, Summary, summarize
from dispatchmon.export.frames import arrow_table, pandas_frame, polars_frame
from dispatchmon.reading.arguments import Interval, Numbers, Words, at_most, columns_of, filters_of, word
from dispatchmon.reading.rows import rows
from dispatchmon.reading.sql import answered
from dispatchmon.reading.trace_files import Paths, TraceFiles, open_files
from dispatchmon.words.figures import count, counted
from dispatchmon.words.harmless import printable
from dispatchmon.words.tables import Cells, as_html

_MOST_FILES = 3  # that a trace is named by


def open_trace(paths: Paths) -> Trace:
    """
    Open a trace: one file, or several files or a folder that hold the ranks of one run.

    Raises:
        TraceNotFoundError: there is no such file, or no trace in the folder.
        NotATraceError: a file is not a trace, or is damaged beyond reading.
        TraceVersionError: a newer, incompatible dispatchmon wrote it.
        DispatchmonError: two files claim the same rank, so they are not of one run.
    """
    opened = open_files(paths)
    return Trace(opened.files, opened.notes)


@dataclass(frozen=True, repr=False)
class Trace(TraceFiles):
    """
    A run, complete or cut: what `dispatchmon` answers of it, and its rows.

    Every question takes the same filters; what is left out filters nothing:

    - `steps`: `3`, `"10:20"` or `(10, 20)`: from step 10 up to, not including, 20; either end may be left out.
    - `modules`, `ops`: a glob or several, as `"encoder.*"`, `["aten.mul*", "aten.add*"]`; `""` is the model itself.
    - `phases`: `"forward"`, `"backward"`, `"recompute"` or `"optimizer"`, or several.
    - `ranks`: a rank or several.

    Where rows are asked for there are two more:

    - `events`: numbers of events, as `steps`.
    - `where`: one SQL expression over the columns, as `"nan > 0"`.

    An argument that cannot be meant is a `SettingError`, which is also a `ValueError`; damage that is met while reading is
    a `NotATraceError`. Both are `DispatchmonError`s.
    """

    def summarize(
        self,
        by: By = "op",
        *,
        sort: Sort | None = None,
        top: int | None = 20,
        steps: Interval = None,
        modules: Words = None,
        ops: Words = None,
        phases: Words = None,
        ranks: Numbers = None,
    ) -> Summary:
        """
        What ran, what it wrote over, and what stands out, as `dispatchmon summarize`.

        Args:
            by: what to group by: `op`, `module`, `phase`, `step`, `dtype` or `source`.
            sort: `calls` (default), `writes`, `time`, `magnitude`, `nan`, `inf`, largest first; `name` (default of steps).
            top: so many groups; 0 is all.
            steps, modules, ops, phases, ranks: filters, see `Trace`.
        """
        word("by", by, BY)
        if sort is not None:
            word("sort", sort, SORTS)
        filters = filters_of(steps=steps, modules=modules, ops=ops, phases=phases, ranks=ranks)
        return summarize(self, by, filters, sort, at_most("top", top))

    def audit(
        self,
        *,
        all: bool = False,  # noqa: A002  # the command's word
        top: int | None = 20,
        steps: Interval = None,
        modules: Words = None,
        ops: Words = None,
        phases: Words = None,
        ranks: Numbers = None,
    ) -> Audit:
        """
        Every in-place write, and which are hazards, as `dispatchmon audit`.

        Args:
            all: list each tensor that was written, in `every_write`.
            top: so many rows in the table; 0 is all.
            steps, modules, ops, phases, ranks: filters, see `Trace`.
        """
        filters = filters_of(steps=steps, modules=modules, ops=ops, phases=phases, ranks=ranks)
        return audit(self, filters, every_write=all, top=at_most("top", top) or 0)

    def nonfinite(
        self,
        *,
        steps: Interval = None,
        modules: Words = None,
        ops: Words = None,
        phases: Words = None,
        ranks: Numbers = None,
    ) -> NonFinite:
        """
        Where the first NaN or Inf was born, what led there, and where it went, as `dispatchmon nonfinite`.

        Args:
            steps, modules, ops, phases, ranks: which origins are wanted, by where they are, see `Trace`.
        """
        return find_nonfinite(self, filters_of(steps=steps, modules=modules, ops=ops, phases=phases, ranks=ranks))

    def structure(
        self,
        *,
        steps: Interval = None,
        modules: Words = None,
        ops: Words = None,
        phases: Words = None,
        ranks: Numbers = None,
    ) -> Structure:
        """
        The module tree, with shapes and dtypes of what went in and came out, as `dispatchmon structure`.

        Args:
            steps, modules, ops, phases, ranks: filters, see `Trace`; `ops` are the modules' classes.
        """
        return structure(self, filters_of(steps=steps, modules=modules, ops=ops, phases=phases, ranks=ranks))

    def iter_rows(
        self,
        columns: Words = None,
        *,
        limit: int | None = None,
        steps: Interval = None,
        modules: Words = None,
        ops: Words = None,
        phases: Words = None,
        ranks: Numbers = None,
        events: Interval = None,
        where: str | None = None,
    ) -> Iterator[dict[str, Any]]:
        """
        The rows themselves, one after the other in constant memory, as `dispatchmon show --format ndjson`.

        Args:
            columns: names of the columns (default all); the others are not read. `cells` comes in hexadecimal digits.
            limit: at most so many rows; 0 is all.
            steps, modules, ops, phases, ranks, events, where: filters, see `Trace`.
        """
        filters = filters_of(
            steps=steps, modules=modules, ops=ops, phases=phases, ranks=ranks, events=events, where=where
        )
        return rows(self, columns_of(columns), filters, at_most("limit", limit))

    def to_arrow(
        self,
        columns: Words = None,
        *,
        steps: Interval = None,
        modules: Words = None,
        ops: Words = None,
        phases: Words = None,
        ranks: Numbers = None,
        events: Interval = None,
        where: str | None = None,
    ) -> pa.Table:
        """
        The rows as an Arrow table, in the types of docs/format.md.

        Args:
            columns: names of the columns (default all); the others are not read.
            steps, modules, ops, phases, ranks, events, where: filters, see `Trace`.
        """
        filters = filters_of(
            steps=steps, modules=modules, ops=ops, phases=phases, ranks=ranks, events=events, where=where
        )
        return arrow_table(self, columns_of(columns), filters)

    def to_pandas(self, columns: Words = None, **filters: Any) -> Any:
        """
        The same rows as a pandas DataFrame: arguments as of `to_arrow`.

        Whole numbers and booleans have pandas' types that can be missing (`Int64`, `boolean`).

        Raises:
            DispatchmonError: pandas is not installed.
        """
        return pandas_frame(self.to_arrow(columns, **filters))

    def to_polars(self, columns: Words = None, **filters: Any) -> Any:
        """
        The same rows as a Polars DataFrame: arguments as of `to_arrow`.

        Raises:
            DispatchmonError: Polars is not installed.
        """
        return polars_frame(self.to_arrow(columns, **filters))

    def sql(self, statement: str) -> pa.Table:
        """
        The answer to one SELECT over the table `trace`, in DuckDB's SQL; the statement can reach nothing else.

        The columns that it names are held in memory meanwhile. A sum of whole numbers is an int64 where it fits.

        Raises:
            SettingError: it is no SELECT, or more than one statement.
            DispatchmonError: it is wrong; the message says where.
        """
        return answered(self, statement)

    def __repr__(self) -> str:
        return f"<Trace {printable(self._named())}: {', '.join(said for _, said in self._facts())}>"

    def _repr_html_(self) -> str:
        facts = [("trace", self._named()), *((name, said) for name, said in self._facts() if name)]
        return as_html(Cells(("", ""), facts, numeric=False), closing=self.warnings)

    def _named(self) -> str:
        names = [str(file.path) for file in self.files[:_MOST_FILES]]
        return ", ".join(names) + (", …" if len(self.files) > _MOST_FILES else "")

    def _facts(self) -> list[tuple[str, str]]:
        """What is known of a trace at once."""
        ranks = self.ranks
        several = len(ranks) > 1 or self.files[0].world_size > 1
        steps = [(file.closing or {}).get("steps") for file in self.files]
        facts = [
            ("ranks", f"{counted(len(ranks), 'rank')} of {count(self._world_size)}" if several else f"rank {ranks[0]}"),
            ("rows", "rows unknown" if self.rows is None else counted(self.rows, "row")),
        ]
        if known := [n for n in steps if isinstance(n, int)]:
            facts.append(("steps", counted(max(known), "step")))
        return [*facts, ("complete", "complete" if self.complete else "not complete")]
