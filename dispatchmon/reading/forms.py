"""
The JSON of a trace, checked against what the format says of it, before anyone looks into it.

A trace may come from a stranger, so a document may be anything: not JSON, nested a million times, a list where a number
belongs, a number that has no end. What passes here is of the types that `docs/format.md` gives; keys that it does not name are
let through, since a newer minor version may add some.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dispatchmon.errors import NotATraceError
from dispatchmon.reading.messages import Damaged
from dispatchmon.words.harmless import storable
from dispatchmon.words.hazards import SEVERITIES

MOST_BYTES = 1 << 28  # of one document
MOST = 2**63 - 1  # of a number


@dataclass(frozen=True)
class Natural:
    """A whole number from a least one on."""

    least: int = 0


@dataclass(frozen=True)
class Words:
    """One of these words."""

    known: frozenset[str]


@dataclass(frozen=True)
class Each:
    """A list, or an object with any keys, all of whose values have this form; of a list perhaps so many."""

    kind: type
    form: Any
    length: int | None = None


@dataclass(frozen=True)
class Keys:
    """An object: keys that must be there, and keys that may be."""

    required: Mapping[str, Any]
    optional: Mapping[str, Any]


# A form is a type, one of the classes above, or a pair of one of these and None, where null stands as well.
NUMBER = Natural()
NAME = (str, None)
MODULE = Keys({"name": str, "class": str}, {"same_as": NAME})
PARAMETER = Keys({"name": str}, {"shape": (Each(list, NUMBER), None), "dtype": NAME})
METADATA = Keys(
    {"format": str},
    {
        **dict.fromkeys(("dispatchmon", "torch", "python", "platform", "model", "statistics_backend", "started"), NAME),
        "rank": (NUMBER, None),
        "world_size": (Natural(1), None),
        "modules": (Each(list, MODULE), None),
        "parameters": (Each(list, PARAMETER), None),
        "settings": (Keys({}, {"phases": (Each(list, str), None)}), None),
        "threads": (NUMBER, None),
        "flush": (Keys({}, {"rows": NUMBER, "seconds": float}), None),
        "command": (Each(list, str), None),
    },
)
CLOSING = Keys(
    {},
    {
        "complete": (bool, None),
        "reason": NAME,
        **dict.fromkeys(("events", "rows", "writes", "undeclared_writes", "hazards", "steps"), (NUMBER, None)),
        **dict.fromkeys(("monitor_ns", "wait_ns"), (NUMBER, None)),
        "skipped": (Each(dict, NUMBER), None),
        "kept_for_good": (Each(dict, Each(list, NUMBER)), None),
    },
)
ARGUMENTS = Keys({}, {})  # of an operator: whatever its schema names
FINDING = Keys(  # the arguments of a hazard
    {},
    {
        "finding": Words(frozenset(SEVERITIES)),
        "victim": (Each(list, NAME, 3), None),
        "lines": (Each(list, NAME), None),
        **dict.fromkeys(("written", "instead", "statement", "given", "taker", "parameter", "taken_at"), NAME),
        **dict.fromkeys(("saved_as", "error", "refused", "why"), NAME),
    },
)


def read(text: bytes | str, form: Keys) -> dict[str, Any]:
    """
    Read a document that must be an object of this form.

    Raises:
        Damaged: it is not; the message says what is wrong.
    """
    if len(text) > MOST_BYTES:
        raise Damaged(f"it has {len(text):,} bytes, and at most {MOST_BYTES:,} are read")
    try:
        document = json.loads(text, parse_constant=_refuse, parse_float=_finite, parse_int=_whole)
        if not text.isascii() or ("\\u" in text if isinstance(text, str) else b"\\u" in text):
            document = storable(document)
    except (ValueError, RecursionError) as error:
        raise Damaged("it is not JSON, or too deeply nested") from error
    require(document, form, "")
    return dict(document)


def read_arguments(text: str | None, event: int, form: Keys = ARGUMENTS) -> dict[str, Any]:
    """
    Read what a row says of its event's arguments; nothing is an empty object.

    Raises:
        NotATraceError: it cannot be read.
    """
    try:
        return read(text or "{}", form)
    except Damaged as error:
        raise NotATraceError(
            f"the trace is damaged: the arguments of event {event} cannot be read ({error}); record it again"
        ) from error


def require(value: Any, form: Any, where: str) -> None:
    """
    Require a value to be of a form.

    Raises:
        Damaged: it is not.
    """
    if isinstance(form, tuple):
        if value is None:
            return
        form = form[0]
    if not _fits(value, form):
        raise Damaged(f"{where or 'it'} cannot be {_short(value)}")
    if isinstance(form, Each):
        for key, each in value.items() if form.kind is dict else enumerate(value):
            require(each, form.form, _inner(where, key))
    elif isinstance(form, Keys):
        for key, inner in form.required.items():
            if key not in value:
                raise Damaged(f"{_inner(where, key)} is missing")
            require(value[key], inner, _inner(where, key))
        for key, inner in form.optional.items():
            if key in value:
                require(value[key], inner, _inner(where, key))


def _fits(value: Any, form: Any) -> bool:
    """Whether a value is of a form, but for what is inside of it."""
    if isinstance(form, Natural):
        return isinstance(value, int) and not isinstance(value, bool) and form.least <= value <= MOST
    if isinstance(form, Words):
        return isinstance(value, str) and value in form.known
    if isinstance(form, Each):
        if not isinstance(value, dict | list) or not isinstance(value, form.kind):
            return False
        return form.length is None or len(value) == form.length
    if isinstance(form, Keys):
        return isinstance(value, dict)
    if form is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, form)


def _inner(where: str, key: str | int) -> str:
    if isinstance(key, int):
        return f"{where}[{key}]"
    key = key if len(key) <= 40 else f"{key[:40]}…"
    return f"{where}.{key}" if where else key


def _short(value: Any) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "such a list"
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number without an end")
    return number


def _whole(text: str) -> int:
    number = int(text)
    if abs(number) >= 1 << 64:
        raise ValueError("a number without an end")
    return number
