"""What the program is doing, from the code and the position of its frames. No frame's local variables are read."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from types import CodeType, FrameType

from dispatchmon.hazards.old_names import calls_method, is_function
from dispatchmon.torch_internals import OURS, TORCH, call_implementation

_MACHINERY = tuple(
    TORCH + where for where in ("_dynamo", "_compile.py", "_ops.py", os.path.join("utils", "_python_dispatch.py"))
)
_INITIALISERS = tuple(os.path.join(TORCH, "nn", *where) for where in (("init.py",), ("modules", "lazy.py")))


def frames(everything: bool = False) -> Iterator[tuple[CodeType, FrameType]]:
    """(code, frame) of the callers, innermost first; up to the innermost module call unless everything is wanted."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (everything or frame.f_code is not call_implementation):
        if not frame.f_code.co_filename.startswith(OURS):
            yield frame.f_code, frame
        frame = frame.f_back


def in_function() -> bool:
    """Whether the forward of an autograd.Function runs."""
    return any(is_function(code) for code, _ in frames())


def application(frame: FrameType | None) -> FrameType | None:
    """The frame that applied the outermost autograd.Function whose forward runs in this module call; None if none does."""
    found = None
    while frame is not None and frame.f_code is not call_implementation:
        if is_function(frame.f_code):
            found = frame.f_back
        frame = frame.f_back
    return found


def initialising() -> bool:
    """Whether torch's own code that fills fresh parameters runs."""
    return any(code.co_filename in _INITIALISERS for code, _ in frames(everything=True))


def says_detach(frame: FrameType | None) -> bool:
    """Whether the line that dispatched a detach says `.detach()`. Autograd dispatches some of its own."""
    while frame is not None and frame.f_code.co_filename.startswith((*_MACHINERY, OURS)):
        frame = frame.f_back
    return frame is not None and calls_method(frame.f_code, frame.f_lasti, "detach")


def caller() -> FrameType | None:
    """The nearest frame outside this package; None if that is torch's."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_filename.startswith(OURS):
        frame = frame.f_back
    return None if frame is None or frame.f_code.co_filename.startswith(TORCH) else frame
