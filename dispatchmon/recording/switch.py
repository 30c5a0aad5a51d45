"""Which steps and calls are recorded, and the dispatch mode on and off the stack."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from dispatchmon.hazards.makers import Makers
from dispatchmon.module_tracker import ModuleTracker
from dispatchmon.packed.events import EventBuffer
from dispatchmon.recording.dispatch import RecordingMode
from dispatchmon.settings import Settings
from dispatchmon.torch_internals import current_dispatch_mode, take_higher_order_operators, take_off_stack
from dispatchmon.values.values import Values


class Switch:
    """
    Turns recording on and off.

    Args:
        over: whether nothing more can be recorded.
    """

    def __init__(
        self,
        settings: Settings,
        mode: RecordingMode,
        buffer: EventBuffer,
        values: Values,
        tracker: ModuleTracker,
        makers: Makers,
        over: Callable[[], bool],
    ) -> None:
        self.settings, self.mode, self.buffer, self.values, self.tracker = settings, mode, buffer, values, tracker
        self.makers, self.over = makers, over
        self.pid = os.getpid()
        self.dispatches = "ops" in settings.record
        self.pushed = False
        self.end_higher_order: Any = None
        self.pauses = 0
        self.right_step = self.right_mode = True
        self.steps_left_out = 0
        self.calls_left_out = 0  # of the model, in the other of training and evaluation mode

    def step(self, number: int) -> None:
        """This step begins."""
        self.right_step = self.settings.wants_step(number)
        self.steps_left_out += not self.right_step
        self.turn()

    def training(self, training: bool) -> None:
        """The model is called, in training or evaluation mode."""
        self.right_mode = training == self.settings.training
        self.calls_left_out += not self.right_mode
        self.turn()

    def turn(self) -> None:
        """On or off, as it should be."""
        if self.right_step and self.right_mode:
            if self.buffer.idle:
                self.on()
        elif not self.buffer.idle:
            self.off()

    def on(self) -> None:
        """Record from here on. What happened in between was not seen: values met again are new versions."""
        if self.over() or os.getpid() != self.pid:
            return
        if self.pauses:
            self.values.new_epoch()
        if self.tracker.judge is not None:
            self.makers.resume()
        else:
            self.makers.ignore()
        self.buffer.idle = False
        self.tracker.resume()
        if not self.pushed and self.dispatches:
            self.end_higher_order = self.end_higher_order or take_higher_order_operators(RecordingMode)
            self.mode.__enter__()  # type: ignore[no-untyped-call]
            self.pushed = True

    def off(self) -> None:
        """Run without the mode, or with one that passes everything on where another mode lies above it."""
        self.buffer.idle = True
        self.tracker.pause()
        self.pauses += 1
        if self.pushed and current_dispatch_mode() is self.mode:
            self.mode.__exit__(None, None, None)
            self.pushed = False

    def close(self) -> None:
        """Off for good, also from below another mode."""
        self.off()
        if self.pushed:
            take_off_stack(self.mode)
        if self.end_higher_order is not None:
            self.end_higher_order()
