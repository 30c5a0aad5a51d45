"""The user's line of an operator: the nearest frame outside torch, dispatchmon and Python's own library."""

from __future__ import annotations

import inspect
import os
import sysconfig
import weakref
from types import CodeType, FrameType

from torch.optim.optimizer import Optimizer

from dispatchmon.packed.records import OWN
from dispatchmon.packed.source_lines import described
from dispatchmon.packed.tables import Table
from dispatchmon.torch_internals import ENGINE_CODE, OURS, TORCH, graph_task, has_step_hooks

_LIBRARIES = (TORCH, OURS, "<frozen ")
_STDLIB = sysconfig.get_path("stdlib") + os.sep
_PACKAGES = tuple(path + os.sep for key in ("purelib", "platlib") if (path := sysconfig.get_path(key)))


class Libraries(dict[str, bool]):
    """File name -> whether its lines are never the user's."""

    def __missing__(self, name: str) -> bool:
        self[name] = library = (
            name.startswith(_LIBRARIES)
            or "torchinductor_" in name  # code that torch.compile wrote
            or (name.startswith(_STDLIB) and not name.startswith(_PACKAGES) and "site-packages" not in name)
        )
        return library


class Packages(dict[str, bool]):
    """File name -> whether it belongs to a library or an installed package."""

    def __init__(self, libraries: Libraries) -> None:
        self.libraries = libraries

    def __missing__(self, name: str) -> bool:
        self[name] = package = self.libraries[name] or name.startswith(_PACKAGES) or "site-packages" in name
        return package


class Sources:
    """Frames to numbers into the table of source lines."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.libraries = Libraries()
        self.numbers: dict[tuple[int, int], int] = {}
        self.lines: dict[int, tuple[CodeType, int]] = {}  # keeps the code, so that its id stays its own
        self.packages = Packages(self.libraries)
        self.own_steps: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()  # optimizers of torch's own
        self.backward: tuple[int, int] = (-1, 0)  # graph task, and the line that started it

    def line(self, frame: FrameType | None) -> int:
        """Number of the user's line that led to this frame; 0 if there is none."""
        assert frame is not None
        code: CodeType = frame.f_code
        task = -1
        if code is ENGINE_CODE:  # one walk serves all operators of a backward pass
            task = graph_task()
            if self.backward[0] == task:
                return self.backward[1]
        while self.libraries[code.co_filename]:
            frame = frame.f_back
            if frame is None:
                return 0
            code = frame.f_code
        number = self.number(code, frame.f_lasti)
        if task != -1:
            self.backward = task, number
        return number

    def line_in_backward(self, frame: FrameType) -> int:
        """The same of an operator in backward: where it was started, or with OWN a line of the user's that runs in it."""
        inner: FrameType | None = frame
        while inner is not None and inner.f_code is not ENGINE_CODE:
            if not self.libraries[inner.f_code.co_filename]:
                return OWN + self.number(inner.f_code, inner.f_lasti)
            inner = inner.f_back
        return 0 if inner is None else self.line(inner)

    def line_of_step(self, optimizer: Optimizer, frame: FrameType) -> int:
        """The line that called `optimizer.step()`, if nothing but torch's code runs in it; otherwise 0."""
        kind = type(optimizer)
        if kind not in self.own_steps:
            self.own_steps[kind] = self.libraries[inspect.unwrap(kind.step).__code__.co_filename]
        if has_step_hooks(optimizer) or not self.own_steps[kind]:
            return 0
        return self.line(frame)

    def number(self, code: CodeType, instruction: int) -> int:
        key = id(code), instruction
        number = self.numbers.get(key)
        if number is None:
            number = self.numbers[key] = self.table.add((code, instruction))
            self.lines[number] = code, instruction
        return number

    def text(self, number: int) -> str | None:
        """What the trace says of this line."""
        line = self.lines.get(number & ~OWN)
        return None if line is None else described(*line)

    def instruction(self, number: int) -> tuple[CodeType, int] | None:
        """The code and the instruction of this line."""
        return self.lines.get(number & ~OWN)

    def forget(self) -> None:
        """Start again: a program that makes ever new code (`exec`) must not fill the memory."""
        self.numbers.clear()
        self.lines.clear()
        self.table.forget()

    def caller(self, frame: FrameType | None) -> int:
        """Number of the nearest line that is in no installed package either; 0 if there is none."""
        while frame is not None:
            if not self.packages[frame.f_code.co_filename]:
                return self.number(frame.f_code, frame.f_lasti)
            frame = frame.f_back
        return 0
