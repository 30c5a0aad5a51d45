"""
Writes that autograd refuses before the dispatcher sees them: of a view of `unbind` or `split`, of a leaf, of a view of a leaf.

What is left of them is the exception: its words, the line that raised, and the module call that it left first.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dispatchmon.hazards.borders import short
from dispatchmon.hazards.old_names import method_called
from dispatchmon.packed.records import LIVE
from dispatchmon.torch_internals import next_sequence_number

if TYPE_CHECKING:
    from dispatchmon.recording.assembly import Recording

REFUSALS = re.compile(
    "is being modified inplace|is being used in an in-place operation|Inplace update to inference tensor"
)


def explain_refusal(error: BaseException, recording: Recording) -> None:
    """If an exception says that a write was refused, record it where it happened."""
    text = str(error)
    if not isinstance(error, RuntimeError) or not REFUSALS.search(text):
        return
    sources, traceback, line, name = recording.sources, error.__traceback__, 0, None
    while traceback is not None and sources is not None:
        code = traceback.tb_frame.f_code
        if not sources.libraries[code.co_filename]:
            line, name = sources.number(code, traceback.tb_lasti), method_called(code, traceback.tb_lasti)
        traceback = traceback.tb_next
    tracker, tables = recording.tracker, recording.tables
    failed, context = tracker.failed
    op = f"aten.{name}" if name else "an in-place operator"
    plan = recording.plans.unseen(tables.operators.add((op, "inplace")), op)
    pending = recording.mode.event_of(), 0, context if failed == id(error) else 0, next_sequence_number(), LIVE, line
    entry = recording.values.unknown_geometry()
    recording.hazards.add(
        "blocked-write", (pending, plan, None, -1), entry, None, None, loud=True, error=short(text), refused=True
    )
