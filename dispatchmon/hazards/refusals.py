"""
`blocked-write`: writes that torch refuses.

Some are refused in the kernel, which the mode sees: to memory that is expanded. Most are refused by autograd before the
dispatcher sees them: of a view of `unbind` or `split`, of a leaf, of a view of a leaf. What is left of those is the
exception: its words, the line that raised, and the module call that it left first.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from torch import Tensor

from dispatchmon.hazards.findings import Hazards
from dispatchmon.hazards.old_names import method_called
from dispatchmon.module_tracker import ModuleTracker
from dispatchmon.operators.plan import Plan
from dispatchmon.operators.plans import Plans
from dispatchmon.packed.records import LIVE, Pending
from dispatchmon.torch_internals import next_sequence_number

REFUSALS = re.compile(
    "is being modified inplace|is being used in an in-place operation|Inplace update to inference tensor"
)


class Refusals:
    """Records what torch refused to write."""

    def __init__(self, hazards: Hazards, tracker: ModuleTracker, plans: Plans) -> None:
        self.hazards, self.tracker, self.plans = hazards, tracker, plans

    def by_kernel(self, plan: Plan, pending: Pending, tensor: Tensor, error: BaseException) -> None:
        """An operator raised because it could not write this."""
        values = self.hazards.values
        write = pending, plan, self.tracker.path, -1
        entry, tag = values.entry_of(tensor), values.tag_of(tensor)
        self.hazards.add("blocked-write", write, entry, tag, None, loud=True, error=short(str(error)))

    def by_autograd(self, error: BaseException, next_event: Callable[[], int]) -> None:
        """If an exception says that a write was refused, record it where it happened."""
        text = str(error)
        if not isinstance(error, RuntimeError) or not REFUSALS.search(text):
            return
        hazards, traceback, line, name = self.hazards, error.__traceback__, 0, None
        sources = hazards.sources
        while traceback is not None and sources is not None:
            code = traceback.tb_frame.f_code
            if not sources.libraries[code.co_filename]:
                line, name = sources.number(code, traceback.tb_lasti), method_called(code, traceback.tb_lasti)
            traceback = traceback.tb_next
        failed, context = self.tracker.failed
        op = f"aten.{name}" if name else "an in-place operator"
        plan = self.plans.unseen(hazards.tables.operators.add((op, "inplace")), op)
        pending = next_event(), 0, context if failed == id(error) else 0, next_sequence_number(), LIVE, line
        entry = hazards.values.unknown_geometry()
        hazards.add(
            "blocked-write", (pending, plan, None, -1), entry, None, None, loud=True, error=short(text), refused=True
        )


def short(error: str) -> str:
    """Torch's words up to the first full stop, without the place in its C++ sources."""
    return " ".join(error.split(". ")[0].split("\n")[0].split()).rstrip(".")
