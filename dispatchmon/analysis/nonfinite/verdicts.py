"""
Which findings matter: those whose elements reach a loss, a gradient, a parameter, a buffer, an optimizer's state, or an end
that nobody reads any more. Skipped steps of a GradScaler do not.
"""

from __future__ import annotations

from dispatchmon.analysis.nonfinite.findings import (
    ALARM,
    CLEARED,
    CONSUMED,
    DELIBERATE,
    EXTERNAL,
    HARMLESS,
    ORIGIN,
    READ_UNWRITTEN,
    TURNED,
    UNWRITTEN,
    Finding,
)
from dispatchmon.analysis.nonfinite.rows import FINITE_MAX
from dispatchmon.analysis.nonfinite.search import Search

SKIPPED_IN_A_ROW = 19  # steps that a GradScaler whose scale is not known may skip (65536 * 2**4 down to 1)
SINKS = frozenset({"loss", "gradient", "parameter", "buffer", "state"})


def settle(search: Search) -> None:
    """Give every finding its verdict."""
    streak = longest = 0
    for _, skipped in search.scaler:
        streak = streak + 1 if skipped else 0
        longest = max(longest, streak)
    scale_is_fine = min(search.scales) >= 1 if search.scales else longest <= SKIPPED_IN_A_ROW
    harmful: set[int] = set()
    for found in sorted(search.findings, key=lambda f: f.event, reverse=True):
        if found.kind == READ_UNWRITTEN:
            found.verdict = ALARM if unwritten_matters(search, found) else CLEARED
            continue
        if found.kind == UNWRITTEN:
            continue
        for storage, event in found.ends.items():
            read = search.last_read.get(storage, -1)
            if found.what == "inf":  # what is chosen by -Inf is right
                read = max(read, search.last_choice.get(storage, -1))
            if read <= event and search.last_write.get(storage, event) == event:
                if event < search.questions.known.get(storage, -1) < search.wanted.trained:
                    found.asked = True
                    continue
                found.spread.setdefault("end", (event, None))
                if search.raised.get(storage, -1) > event:
                    found.spread.setdefault("raised", (search.raised[storage], None))
        serious = set(found.spread)
        if found.is_mask or found.kind == EXTERNAL and found.collective is None:
            if found.what == "inf":
                serious -= {"end", "raised", "parameter", "buffer"}
            elif not found.arithmetic:
                serious = set()
        if is_scaled_loss(search, found):
            serious -= {"loss", "end"}
        if scale_is_fine and is_scaled(search, found) and not serious & {"loss", "parameter", "buffer", "state"}:
            found.verdict = HARMLESS
        elif serious:
            found.verdict = ALARM
        elif found.became & harmful:
            alarming = found.kind == ORIGIN and not found.mask or found.kind == EXTERNAL and found.what == "nan"
            found.verdict = ALARM if alarming or found.kind == TURNED else CONSUMED
        else:
            found.verdict = CONSUMED if found.is_mask else CLEARED
        if found.verdict == ALARM:
            harmful.add(found.number)


def unwritten_matters(search: Search, found: Finding) -> bool:
    """Whether what unwritten memory held had a part in a named value or in one that nobody reads any more."""
    unwritten = search.unwritten
    return found.number in unwritten.left or any(
        storage in search.names or search.last_read.get(storage, -1) <= search.last_write.get(storage, 0)
        for storage, known in unwritten.tainted.storages.items()
        if found.number in known.cells or found.number in known.whole
    )


def ancestors(search: Search, found: Finding) -> set[int]:
    """The findings that it was made of, and those that these were made of."""
    known: set[int] = set()
    todo = list(found.causes)
    while todo:
        cause = todo.pop()
        if cause not in known:
            known.add(cause)
            todo += search.findings[cause].causes
    return known


def is_scaled(search: Search, found: Finding) -> bool:
    """
    Whether it is the overflow of a scaled gradient, which GradScaler met afterwards and skipped the step for.

    Nothing in forward may have a part in it.
    """
    if found.kind == TURNED:
        roots = [search.findings[n] for n in ancestors(search, found)]
        roots = [root for root in roots if root.kind != TURNED]
        return any(root.kind == ORIGIN for root in roots) and all(
            root.kind == DELIBERATE or is_scaled(search, root) for root in roots
        )
    if is_scaled_loss(search, found):
        return True
    if not was_skipped_after(search, found):
        return False
    if found.collective is not None:  # the rank that sent it knows more
        return True
    if found.row.phase not in ("backward", "recompute") or found.what == "nan" or found.kind != ORIGIN:
        return False
    event = search.events.get(found.event)
    near = max((row.magnitude or 0.0 for row in event.rows), default=0.0) if event is not None else 0.0
    return near >= FINITE_MAX.get(found.row.dtype or "", 1.0) / 4096


def is_scaled_loss(search: Search, found: Finding) -> bool:
    """Whether it is a loss that the scale itself, which GradScaler lowered then, was too large for."""
    if found.kind != ORIGIN or "nan" in found.made or not was_skipped_after(search, found):
        return False
    event = search.events.get(found.event)
    return event is not None and any(row.numel == 1 and row.max in search.used_scales for row in event.inputs)


def was_skipped_after(search: Search, found: Finding) -> bool:
    """Whether GradScaler skipped a step after it."""
    return any(event > found.event and skipped for event, skipped in search.scaler)
