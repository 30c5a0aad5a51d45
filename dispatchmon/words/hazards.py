"""What a finding of the audit says, in one plain sentence. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

SEVERITIES = {
    "write-after-save": "error",
    "input-overwritten": "warning",
    "alias-overwritten": "warning",
    "overlapping-write": "warning",
    "undeclared-write": "error",
    "blocked-write": "error",
    "parameter-write": "warning",
    "buffer-write": "note",
}
NOBODY = "nobody"  # the operator of a write that nobody saw
Place = tuple[str | None, str | None, str | None]  # op, module, source line


def sentence(
    kind: str,
    *,
    op: str | None,
    module: str | None,
    source: str | None,
    name: str | None,
    shape: Sequence[int] | None,
    victim: Place | None,
    loud: bool,
    details: Mapping[str, Any],
) -> str:
    """Say one finding."""
    who = place((op, module, source))
    written = details.get("written")
    what = f"`{name or written}`" if name or written else "a tensor"
    if shape is not None:
        what += f" of shape {list(shape)}"
    other = None if victim is None else place(victim)
    if kind == "write-after-save":
        return saved(who, what, other, loud, details)
    if kind == "input-overwritten":
        given = details.get("given")
        whose = f"{what} of its caller" + (f" (argument {given})" if given else "")
        if details.get("taker") == "function":
            whose = f"{what}, an argument of an autograd.Function that does not mark it dirty"
        if details.get("taker") == "name":
            whose = f"{what} that its caller goes on using under its old name"
        then = f", which {other} reads again" if other else ", which the caller still holds"
        return f"{who} wrote over {whose}{then}"
    if kind == "alias-overwritten":
        at = f" at {details['taken_at']}" if isinstance(details.get("taken_at"), str) else ""
        if details.get("compared"):
            return f"{other} compares memory with itself: both operands are {what}, which {who} wrote under one of its names"
        if details.get("trained"):
            made = f"detach(){at}" if at else "detach() or nn.Parameter(x)"
            return f"{who} wrote over {what}, which is trained and shares its memory, by {made}, with what {other} reads"
        return f"{who} wrote over {what}, whose older value was kept by detach() or state_dict(){at} and is read by {other}"
    if kind == "overlapping-write":
        why = details.get("why", "operands share memory")
        return f"{who} wrote {what} while {why}: the result depends on the order in which the kernel walks"
    if kind == "undeclared-write":
        if details.get("known"):
            return f"{who} wrote {what}, which its schema does not declare; torch is known to do so"
        if details.get("noticed"):
            lost = f", which {other} had saved for backward," if other else ""
            return (
                f"{what}{lost} changed before {who}, and no operator declares a write (numpy, a C extension, dlpack?)"
            )
        return f"{who} wrote {what}, which its schema does not declare"
    if kind == "blocked-write":
        return refused(who, what, other, name, details)
    if kind == "parameter-write":
        return f"{who} wrote the parameter {what} during a forward pass without gradients"
    return f"{who} wrote the buffer {what}"


def saved(who: str, what: str, other: str | None, loud: bool, details: Mapping[str, Any]) -> str:
    """The sentence of a value that was written after it was saved for backward."""
    saved_as = details.get("saved_as")
    lost = f"which {other or 'an earlier operator'} had saved for backward" + (f" as {saved_as}" if saved_as else "")
    if details.get("checkpoint"):
        lost = f"which the checkpointed region of {other} reads again when it is recomputed"
    elif loud and details.get("overlaps") is False:
        lost = lost.replace("which", "other elements of the memory that", 1)
        lost += ": none of the saved ones, but one version counter belongs to all of it"
    if error := details.get("error"):
        then = f"; torch said: {error}"
    else:
        then = ": autograd raises" if loud else ": autograd cannot notice, and the gradient is silently wrong"
    return f"{who} wrote over {what}, {lost}{then}"


def refused(who: str, what: str, other: str | None, name: str | None, details: Mapping[str, Any]) -> str:
    """The sentence of a write that torch refused."""
    written = details.get("written")
    if name and written and written != name:
        what = f"`{written}`, which is {what}"
    error = details.get("error", "it raised")
    if other:
        where = other.removeprefix("`the use`")
        return f"{who} wrote {what}, and torch refused{where} to use a view of it from before: {error}"
    if details.get("happened"):
        return f"{who} wrote {what}, and then torch refused it: {error}. The memory holds the new value"
    return f"{who} could not write {what}: {error}"


def place(of: Place) -> str:
    """An operator and where it ran: `aten.relu_.default` in head.act at train.py:31 in forward."""
    op, module, source = of
    where = "" if module is None else f" in {module}" if module else " in the model itself"
    return f"`{op or 'something'}`{where}{f' at {source}' if source else ''}"
