"""
A statement that a person has typed: one SELECT over the table `trace`, answered by DuckDB, which reaches nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa

from dispatchmon.errors import DispatchmonError, SettingError
from dispatchmon.reading.database import connected
from dispatchmon.reading.trace_files import TraceFiles
from dispatchmon.schema import COLUMN_NAMES, SCHEMA

_EXAMPLE = 'give one SELECT over the table trace, as "SELECT op, count(arguments) FROM trace GROUP BY op"'
_WIDE = pa.decimal128(38, 0)  # DuckDB's sums of whole numbers


def answered(trace: TraceFiles, statement: str) -> pa.Table:
    """
    Answer a SELECT over the table `trace`.

    The statement may name the table several times, so the columns that it looks at are read into memory as a whole.

    Raises:
        SettingError: it is no text, no SELECT, or more than one statement.
        DispatchmonError: it is wrong, or fails on a row; the message says where.
        NotATraceError: a batch is damaged.
    """
    if not isinstance(statement, str):
        raise SettingError(f"the statement is {statement!r}: {_EXAMPLE}")
    with connected() as connection:
        try:
            _require_one_select(connection, statement)
            columns = looked_at(connection, statement)
            connection.register("trace", SCHEMA.empty_table())
            connection.sql(statement)  # is it right, of a trace with all columns? Nothing runs yet
            connection.unregister("trace")
        except duckdb.Error as error:
            raise DispatchmonError(f"the statement is not understood: {_problem(error)}") from error
        connection.register("trace", trace.scan(columns).read_all())
        try:
            return _narrowed(connection.sql(statement).to_arrow_table())
        except (duckdb.Error, RuntimeError) as error:
            if "interrupted" in str(error).lower():
                raise KeyboardInterrupt from None
            raise DispatchmonError(f"the statement failed: {_problem(error)}") from error


def _require_one_select(connection: duckdb.DuckDBPyConnection, statement: str) -> None:
    found = connection.extract_statements(statement)
    if not found:
        raise SettingError(f"the statement is empty: {_EXAMPLE}")
    if len(found) > 1:
        raise SettingError(f"these are {len(found)} statements: {_EXAMPLE}")
    if found[0].type != duckdb.StatementType.SELECT:
        raise SettingError(f"the statement is no SELECT, but {found[0].type.name}: {_EXAMPLE}")


def looked_at(connection: duckdb.DuckDBPyConnection, statement: str) -> list[str]:
    """The columns of a trace that a statement looks at, by DuckDB's own parser; all of them where that is not sure."""
    parse = "SELECT json_serialize_sql(text) FROM (VALUES (?::VARCHAR)) AS given(text)"
    parsed = connection.execute(parse, [statement]).fetchall()[0][0]
    nodes = list(_nodes(json.loads(parsed)))
    tables = {str(node["alias"]).lower() for node in nodes if "class" not in node and node.get("alias")} | {"trace"}
    for node in nodes:
        if node.get("class") in ("STAR", "POSITIONAL_REFERENCE") or node.get("ref_type") == "NATURAL":
            return list(COLUMN_NAMES)
        names = node.get("column_names") or []
        if len(names) == 1 and str(names[0]).lower() in tables - set(COLUMN_NAMES):  # the whole row
            return list(COLUMN_NAMES)
    words = {str(word).lower() for node in nodes for word in _texts(node)}
    return [name for name in COLUMN_NAMES if name in words] or ["event"]


def _nodes(of: Any) -> Iterator[dict[str, Any]]:
    """Every object of a JSON document."""
    if isinstance(of, dict):
        yield of
    for inner in of.values() if isinstance(of, dict) else of if isinstance(of, list) else ():
        yield from _nodes(inner)


def _texts(node: dict[str, Any]) -> Iterator[Any]:
    for value in node.values():
        yield from (each for each in (value if isinstance(value, list) else [value]) if isinstance(each, str))


def _narrowed(table: pa.Table) -> pa.Table:
    """The sums of whole numbers, which DuckDB makes 128 bits wide, as int64 where all of them fit."""
    for i, field in enumerate(table.schema):
        if field.type == _WIDE:
            try:
                table = table.set_column(i, field.name, table.column(i).cast(pa.int64()))
            except pa.ArrowInvalid:
                continue
    return table


def _problem(error: BaseException) -> str:
    return " ".join(str(error).partition("\n\nLINE")[0].split())
