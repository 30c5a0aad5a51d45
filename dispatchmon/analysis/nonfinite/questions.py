"""
What the program itself asked of a value, and was told: `if not loss.isfinite(): continue`.

`isnan`, `isinf` and the comparisons that `isfinite` is made of give truth values; once one that descends from them has left
for Python, the program knows. What it does then is not in the trace, but whether it went on training is.
"""

from __future__ import annotations

from collections.abc import Callable

from dispatchmon.analysis.nonfinite.rows import Event

_ASKS = frozenset({"isnan", "isinf", "isposinf", "isneginf", "isfinite"})
_TELLS = ("aten._local_scalar_dense.", "aten.is_nonzero.", "aten.item.")


class Questions:
    """
    Follows truth values from the question to Python.

    Args:
        follow: called with each memory that holds such a truth value, so that its events come.
    """

    def __init__(self, follow: Callable[[int], None]) -> None:
        self.follow = follow
        self.about: dict[int, set[int]] = {}  # storage of truth values -> storages that they are about
        self.known: dict[int, int] = {}  # storage -> the event at which Python was last told about it

    def event(self, event: Event) -> None:
        """Follow one event that is not a view."""
        read = [row.storage for row in event.inputs if row.storage is not None]
        about = {each for storage in read for each in self.about.get(storage, ())}
        if about and event.first.op.startswith(_TELLS):
            self.known |= dict.fromkeys(about, event.first.event)
        if asks(event):
            about |= set(read)
        for out in event.outputs:
            if out.storage is None:
                continue
            if about and out.dtype == "bool":
                self.about[out.storage] = about
                self.follow(out.storage)
            else:
                self.about.pop(out.storage, None)


def asks(event: Event) -> bool:
    """Whether an operator asks where a value is NaN or infinite: `isnan`, `x == x`, `abs(x) != inf`."""
    if event.operation in _ASKS:
        return True
    if event.operation not in ("eq", "ne"):
        return False
    values = {(row.storage, row.version, row.offset, row.shape, row.stride) for row in event.inputs}
    return "i" in event.constants or len(event.inputs) == 2 and len(values) == 1 and event.inputs[0].storage is not None
