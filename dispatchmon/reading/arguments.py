"""
What a person may say to choose rows, checked, as `Filters`.

The command line and `Trace` take the same words: a range of steps as `10:20`, globs of modules and operators, phases, ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dispatchmon.errors import SettingError
from dispatchmon.reading.contents import Range
from dispatchmon.reading.query import Filters, checked
from dispatchmon.schema import COLUMN_NAMES, PHASES
from dispatchmon.words.names import meant

Words = str | Iterable[str] | None  # one or several; None is all
Numbers = int | Iterable[int] | None
Interval = int | str | tuple[int | None, int | None] | None  # 3, "10:20", (10, 20); None is all


def filters_of(
    *,
    steps: Interval = None,
    modules: Words = None,
    ops: Words = None,
    phases: Words = None,
    ranks: Numbers = None,
    events: Interval = None,
    where: str | None = None,
) -> Filters:
    """
    Return the filters that are meant.

    Raises:
        SettingError: an argument cannot be meant; the message says which, and what it may be.
        DispatchmonError: the condition `where` is not understood.
    """
    return Filters(
        steps=interval("steps", steps),
        modules=globs("modules", modules, "encoder.*"),
        ops=globs("ops", ops, "aten.mul*"),
        phases=() if phases is None else tuple(word("phases", each, PHASES) for each in several("phases", phases)),
        ranks=numbers("ranks", ranks),
        events=interval("events", events),
        where=None if where is None else checked(where),
    )


def read_interval(text: str) -> Range | None:
    """Read `a:b`, `a:`, `:b`, or one number `a`, as a half-open range; None if it is none of these."""
    start, colon, stop = text.partition(":")
    if not all(end.isdecimal() or (colon and not end) for end in (start, *([stop] if colon else []))):
        return None
    if not colon:
        return int(start), int(start) + 1
    return int(start) if start else None, int(stop) if stop else None


def interval(argument: str, given: Interval) -> Range:
    """A half-open range, of a number, a text or a pair."""
    found: Range | None = None
    if given is None:
        return None, None
    if isinstance(given, str):
        found = read_interval(given)
    elif isinstance(given, tuple):
        if len(given) == 2 and all(end is None or is_number(end) for end in given):
            found = given
    elif is_number(given):
        found = given, given + 1
    if found is None:
        raise SettingError(
            f'{argument} is {given!r}: give a number, "10:20" or (10, 20), which is from 10 up to, not including, 20; '
            "either end may be left out"
        )
    start, stop = found
    if stop is not None and stop <= (start or 0):
        raise SettingError(f"{argument} is {given!r}: nothing lies between these")
    return found


def is_number(given: object) -> bool:
    """Whether it is a whole number, from 0 on."""
    return isinstance(given, int) and not isinstance(given, bool) and given >= 0


def several(argument: str, given: Words) -> tuple[str, ...]:
    """One word or several."""
    words = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else (given,)
    if not words:
        raise SettingError(f"{argument} is empty: leave it out, or give at least one")
    for each in words:
        if not isinstance(each, str):
            raise SettingError(f"{argument} is {given!r}: give a text or several")
    return tuple(str(each) for each in words)


def globs(argument: str, given: Words, example: str) -> tuple[str, ...]:
    """One glob or several."""
    if given is None:
        return ()
    if not isinstance(given, Iterable):
        raise SettingError(f'{argument} is {given!r}: give a glob, as "{example}", or several')
    return several(argument, given)


def numbers(argument: str, given: Numbers) -> tuple[int, ...]:
    """One number or several."""
    if given is None:
        return ()
    found = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
    if not found or not all(is_number(each) for each in found):
        raise SettingError(f"{argument} is {given!r}: give a number or several, as (0, 3)")
    return found


def word(argument: str, given: object, known: Sequence[str]) -> str:
    """One of the known words."""
    if not isinstance(given, str) or given not in known:
        raise SettingError(
            f"{argument}: {given!r} is not known{meant(str(given), known)}; choose from {', '.join(known)}"
        )
    return given


def columns_of(given: Words) -> tuple[str, ...]:
    """Some columns of a trace, in the order in which they were given; None is all."""
    if given is None:
        return COLUMN_NAMES
    found = several("columns", given)
    for each in found:
        if each not in COLUMN_NAMES:
            raise SettingError(
                f"columns: a trace has no column {each!r}{meant(each, COLUMN_NAMES)}; it has {', '.join(COLUMN_NAMES)}"
            )
        if found.count(each) > 1:
            raise SettingError(f"columns: {each!r} is there twice")
    return found


def at_most(argument: str, given: int | None) -> int | None:
    """How many are wanted; 0 and None are all."""
    if given is not None and not is_number(given):
        raise SettingError(f"{argument} is {given!r}: give a number, 0 for all")
    return given or None
