"""
`on_nonfinite="warn"` and `"raise"`: whether a moment at which NaN or Inf may do harm is one, and what is said of it.

What was recorded so far is searched as `dispatchmon nonfinite` searches a trace, so both say the same. A search takes its
time: after one that found no harm the next one waits, so that searching never takes more than a small part of the run.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dispatchmon.errors import NonFiniteError
from dispatchmon.observing.on_nonfinite import Harm
from dispatchmon.sink import Sink
from dispatchmon.words.harmless import printable_lines

if TYPE_CHECKING:
    from dispatchmon.analysis.nonfinite import NonFinite

PATIENCE = 60.0  # seconds that the sink is given to write what was recorded
SHARE = 20  # a search that was for nothing takes at most this part of the run
MOST_BYTES = 1 << 24  # of a trace that is searched while the program waits, a second or two
MOST_IN_VAIN = 3  # times that a harm that seems certain does not wait
MOST_CERTAIN_BYTES = 1 << 26  # if it is certain that there is harm


class Alarm:
    """
    Speaks once.

    Args:
        raises: raise a `NonFiniteError`, or warn.
        path: the trace, which is being written.
        sink: who writes it.
        hand_over: called to have all that was recorded so far written; how many batches that makes.
    """

    def __init__(self, raises: bool, path: Path, sink: Sink, hand_over: Callable[[], int]) -> None:
        self.raises, self.path, self.sink, self.hand_over = raises, path, sink, hand_over
        self.spoke = False
        self.looking = False
        self.rests_until = 0.0
        self.in_vain = 0  # searches for a harm that seemed certain

    def look_into(self, harm: Harm | None) -> None:
        """
        Find out whether harm was done, and say where it began.

        Raises:
            NonFiniteError: if that was asked for.
        """
        if harm is None or self.spoke or self.looking:
            return
        if time.monotonic() < self.rests_until and not (harm.certain and self.in_vain < MOST_IN_VAIN):
            return
        self.looking = True
        try:
            text = self.found(harm)
        finally:
            self.looking = False
        if text is not None:
            self.speak(text)
        self.in_vain += harm.certain

    def found(self, harm: Harm) -> str | None:
        """What there is to say, if there is."""
        start = time.monotonic()
        try:
            if not self.written():
                return None if self.sink.over else self.unsearched(harm)
            if self.sink.writer.size > (MOST_CERTAIN_BYTES if harm.certain else MOST_BYTES):
                return self.unsearched(harm)
            answer = self.so_far(harm.gradients)
        except Exception:  # it must not be the training that ends with this
            return self.unsearched(harm)
        finally:
            now = time.monotonic()
            self.rests_until = now + SHARE * (now - start)
        return None if answer is None or answer.first is None else answer.first.message

    def written(self) -> bool:
        """Have all that was recorded so far written; whether it is."""
        batches = self.hand_over()
        end = time.monotonic() + PATIENCE
        while self.sink.done < batches and not self.sink.over and time.monotonic() < end:
            time.sleep(0.001)
        return self.sink.done >= batches and not self.sink.over

    def so_far(self, gradients: frozenset[int] = frozenset(), at_exception: bool = False) -> NonFinite | None:
        """Search what is written."""
        from dispatchmon.analysis.nonfinite.so_far import harm_so_far  # loaded when it is needed, and only then
        from dispatchmon.reading.trace_files import open_files

        return harm_so_far(open_files(self.path), gradients, at_exception=at_exception)

    def unsearched(self, harm: Harm) -> str | None:
        """Where the harm is, if it is certain; where it began is for the command to find."""
        return f"{harm.where}; where that began is found by: dispatchmon nonfinite {self.path}" if harm.certain else None

    # ------------------------------------------------------------------------------------------------- the end
    def at_end(self, answer: NonFinite | None) -> None:
        """
        The block is over, and the whole trace was searched.

        Raises:
            NonFiniteError: if that was asked for.
        """
        if self.spoke or answer is None:
            return
        if answer.first is not None:
            self.speak(answer.first.message)
        elif answer.vanished:
            self.speak(answer.vanished[0].message)
        elif answer.found:
            self.speak(next(each for each in answer.uninitialised if each.matters).message)

    def at_exception(self) -> None:
        """
        The block is left by an exception, and the trace is closed: what led to it may have been a NaN.

        Raises:
            NonFiniteError: if that was asked for; the exception is its context.
        """
        if self.spoke or self.path.stat().st_size > MOST_BYTES:
            return
        try:
            answer = self.so_far(at_exception=True)
        except Exception:
            return
        if answer is not None and answer.first is not None:
            self.speak(answer.first.message)

    def speak(self, text: str) -> None:
        """
        Say it.

        Raises:
            NonFiniteError: if that was asked for.
        """
        self.spoke = True
        if self.raises:
            raise NonFiniteError(text)
        warnings.warn(f"dispatchmon: {printable_lines(text)}", RuntimeWarning, stacklevel=2)
