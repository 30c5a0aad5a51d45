"""
What a trace says, made harmless for the place it goes to: a terminal, a page, a spreadsheet, a JSON document.

A trace may come from a stranger, and any of its texts may be written for what shows it: a control character moves the cursor
of a terminal, an override of the direction makes a name read as another, a cell that begins with `=` is run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from dispatchmon.words.documents import plain

_STARTS_A_FORMULA = "=+-@\uff1d\uff0b\uff0d\uff20"  # the last four: the same in full width
_NEEDS_QUOTES = re.compile('[",;\t\r\n]')  # a semicolon separates too, where the comma is a decimal point
_NOT_PLAIN = re.compile(r"[^\x00-\x7e]")


def storable(value: Any) -> Any:
    """
    A text, or a document with texts, as UTF-8 can hold it: half of a surrogate pair becomes an escape, as `\\udc80`.

    Names of files that are not UTF-8 have such halves in Python, and a module may be given any name.
    """
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {storable(key): storable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [storable(item) for item in value]
    return value


def printable(text: str) -> str:
    """The text without what a terminal would obey: all that is not printable as an escape of Python's, as `\\x1b`."""
    return text if text.isprintable() else "".join(map(_escaped, text))


def printable_lines(text: str) -> str:
    """The same of a text of several lines."""
    return "\n".join(map(printable, text.split("\n")))


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON in which all that is not printable is an escape; a number that is not finite, which JSON lacks, is a text."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent)
    except ValueError:
        text = json.dumps(plain(value), ensure_ascii=False, allow_nan=False, indent=indent)
    return text if text.isascii() and "\x7f" not in text else _NOT_PLAIN.sub(_json_escaped, text)


def cell(text: str) -> str:
    """
    The text as a spreadsheet will take it: as a text, or as the number that it is.

    What begins as a formula gets an apostrophe before it, as https://owasp.org/www-community/attacks/CSV_Injection
    recommends, and what is not printable becomes an escape.
    """
    text = printable(text)
    return f"'{text}" if text.lstrip(" ")[:1] in tuple(_STARTS_A_FORMULA) and not _is_number(text) else text


def csv_line(values: Sequence[Any]) -> str:
    """One line of CSV. Null is an empty field, an empty text is `""`: a reader can tell the model from outside it."""
    return ",".join(map(_field, values))


def _field(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, int | float):
        return str(value)
    text = cell(json_text(value) if isinstance(value, list | tuple | dict) else str(value))
    return '"' + text.replace('"', '""') + '"' if not text or _NEEDS_QUOTES.search(text) else text


def _escaped(c: str) -> str:
    return c if c.isprintable() else c.encode("unicode_escape").decode()


def _json_escaped(found: re.Match[str]) -> str:
    return found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1] if found[0] != "\x7f" else "\\u007f"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text
