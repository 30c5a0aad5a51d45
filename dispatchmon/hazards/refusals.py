"""
`blocked-write`: writes that torch refuses.

Some are refused in the kernel, which the mode sees: to memory that is expanded, of another dtype or shape. Most are refused
by autograd before the dispatcher sees them, some after the kernel ran. What is left of those is the exception: its words, the
line that raised (`targets.py`), and the module call that it left first.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

from torch import Tensor

from dispatchmon.hazards.findings import INSIDE, PENDING, Hazards, Victim, Write
from dispatchmon.hazards.targets import UNKNOWN, Target, operands_of, target_of
from dispatchmon.module_tracker import ModuleTracker
from dispatchmon.operators.plan import Plan
from dispatchmon.operators.plans import Plans
from dispatchmon.packed.records import CALLBACK, LIVE, OWN, Pending
from dispatchmon.torch_internals import ENGINE_CODE, OURS, next_sequence_number
from dispatchmon.values.tags import WRITES
from dispatchmon.words.refusals import AFTERWARDS, refusal

# A program may try a write and catch what a dtype or a shape makes of it; memory of one's own is another matter.
_TOLD_IF_SURVIVED = ("expanded", "overlap")
MOST_WORDS = 500  # characters of an error that are kept


class Refusals:
    """Records what torch refused to write."""

    def __init__(self, hazards: Hazards, tracker: ModuleTracker, plans: Plans) -> None:
        self.hazards, self.tracker, self.plans = hazards, tracker, plans
        # The last write that a kernel refused, until it is known whether the run ends with its error: the number of the
        # exception, its words, and what the finding needs.
        self.last: tuple[int, str, tuple[Any, ...]] | None = None

    def by_kernel(self, plan: Plan, pending: Pending, tensor: Tensor, error: BaseException) -> None:
        """An operator raised because it could not write this."""
        text = str(error)
        if refusal(text) is None:
            return
        self.settle(None)
        values = self.hazards.values
        write = pending, plan, self.tracker.path, -1
        self.last = id(error), text, (write, values.entry_of(tensor), values.tag_of(tensor))

    def settle(self, error: BaseException | None) -> bool:
        """Record the last write that a kernel refused; whether this error, with which the run ends, is its own."""
        if self.last is None:
            return False
        number, text, (write, entry, tag) = self.last
        self.last = None
        ended = error is not None and id(error) == number and str(error) == text
        if not ended and refusal(text) not in _TOLD_IF_SURVIVED:
            return False
        target = self.told_by(error)[0] if ended and error is not None else UNKNOWN
        self.add(write, entry, tag, text, ended, target=target)
        return ended

    def explain(self, error: BaseException | None, next_event: Callable[[], int]) -> None:
        """The block ends, maybe with this exception: if it, or what it came from, says that a write was refused, record it."""
        each = error
        while each is not None:
            if self.settle(each):
                return
            if isinstance(each, RuntimeError) and (why := refusal(str(each))) is not None:
                self.refused(each, why, next_event)
                return
            each = each.__cause__ or each.__context__
        self.settle(None)

    def refused(self, error: BaseException, why: str, next_event: Callable[[], int]) -> None:
        """Autograd's error: about which write?"""
        hazards, tracker = self.hazards, self.tracker
        target, line, backward, users = self.told_by(error)
        tensor = target.tensor
        if why == "stale view" and users is not None:
            tensor = next((t for t in operands_of(users) if last_write(hazards.values.tag_of(t), None)), None)
        tag = None if tensor is None else hazards.values.tag_of(tensor)
        entry = hazards.values.unknown_geometry() if tensor is None else hazards.values.entry_of(tensor)
        done = last_write(tag, line if why in AFTERWARDS else None) if why in (*AFTERWARDS, "stale view") else None
        if done is not None:
            reader = Victim(-1, "the use", None, line) if why == "stale view" else None
            self.add(done, entry, tag, str(error), True, target, reader, happened=True)
            return
        op = target.op or "an in-place operator"
        plan = self.plans.unseen(hazards.tables.operators.add((op, "inplace")), op)
        failed, context = tracker.failed
        context = context if failed == id(error) else tracker.contexts.current
        pending = next_event(), 0, context, next_sequence_number(), CALLBACK if backward else LIVE, line
        self.add((pending, plan, None, -1), entry, tag, str(error), True, target)

    def add(
        self, write: Write, entry: Any, tag: Any, text: str, explains: bool, target: Target, victim: Victim | None = None,
        happened: bool = False,
    ) -> None:  # fmt: skip
        self.hazards.add(
            "blocked-write", write, entry, tag, victim, loud=True, error=whole(text), refused=refusal(text),
            explains=explains or None, happened=happened or None, written=target.words, instead=target.out_of_place,
            statement=target.statement,
        )  # fmt: skip

    def told_by(self, error: BaseException) -> tuple[Target, int, bool, TracebackType | None]:
        """What the traceback tells: what was to be written, the user's line that raised, whether backward ran; its frame."""
        sources, traceback = self.hazards.sources, error.__traceback__
        users = innermost = None
        backward = False
        while traceback is not None:
            code = traceback.tb_frame.f_code
            if not code.co_filename.startswith(OURS):
                innermost, backward = traceback, backward or code is ENGINE_CODE
                if sources is not None and not sources.libraries[code.co_filename]:
                    users = traceback
            traceback = traceback.tb_next
        target = UNKNOWN if users is None else target_of(users)
        if innermost is not None and innermost is not users:  # torch's own code says the operator: `torch.relu_(input)`
            inner = target_of(innermost)
            tensor = inner.tensor if target.tensor is None else target.tensor
            target = target._replace(op=inner.op or target.op, words=target.words or inner.words, tensor=tensor)
        line = 0
        if users is not None and sources is not None:
            line = sources.number(users.tb_frame.f_code, users.tb_lasti)
        return target, line, backward, users


def last_write(tag: Any, line: int | None) -> Write | None:
    """The last write to this memory that stands at this line, or at any."""
    logged = (tag and tag[WRITES]) or ()
    for write, _, _ in reversed(logged):
        if line is None or write[PENDING][5] & ~OWN == line or write[INSIDE] >= 0:
            found: Write = write
            return found
    return None


def whole(error: str) -> str:
    """Torch's words on one line, its advice with them."""
    text = " ".join(error.split()).replace("allowed.You", "allowed. You").replace("update.See", "update. See")
    return text.rstrip(".") if len(text) <= MOST_WORDS else text[:MOST_WORDS] + "…"
