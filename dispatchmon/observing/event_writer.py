"""
Events that are no operators: calls of modules, steps of parameters, alerts.

They go through the same buffers as operators do. Where no dispatch mode runs (`record` without `"ops"`) nobody sees writes,
so nothing that was measured is used again in another event: each sees its tensors as new values.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns

from torch import Tensor

from dispatchmon.errors import DispatchmonError
from dispatchmon.observing.alerts import Alerts, Hit
from dispatchmon.packed.events import EventBuffer
from dispatchmon.packed.records import ALERT, EVENT, NOT_ASKED, ROW
from dispatchmon.packed.tables import Tables
from dispatchmon.torch_internals import DisableTorchFunction, local_part
from dispatchmon.values.values import Values

pack_event, pack_row = EVENT.pack, ROW.pack
UNTIMED = -1  # duration of an event that is a moment
Seen = tuple[int, Tensor]  # number of the argument, tensor


class EventWriter:
    """Writes one event after the other into the buffers of a recording."""

    def __init__(
        self, buffer: EventBuffer, values: Values, tables: Tables, alerts: Alerts | None, sees_writes: bool
    ) -> None:
        self.buffer, self.values, self.tables, self.alerts, self.sees_writes = (
            buffer,
            values,
            tables,
            alerts,
            sees_writes,
        )
        self.operators: dict[tuple[str, str], int] = {}
        self.arguments: dict[tuple[str, str], int] = {}
        self.failures = 0  # events of which something could not be recorded

    @property
    def active(self) -> bool:
        """Whether this step is recorded."""
        return not self.buffer.idle

    def operator(self, name: str, kind: str) -> int:
        """Number of what an event is called."""
        number = self.operators.get((name, kind))
        if number is None:
            number = self.operators[name, kind] = self.tables.operators.add((name, "none", kind))
        return number

    def argument(self, role: str, name: str) -> int:
        """Number of a role and a place."""
        number = self.arguments.get((role, name))
        if number is None:
            number = self.arguments[role, name] = self.tables.arguments.add((role, name, False))
            if self.alerts is not None:
                self.alerts.learn_argument(number, role, name)
        return number

    def write(
        self,
        operator: int,
        context: int,
        node: int,
        source: int,
        start: int,
        duration: int,
        seen: Sequence[Seen],
        subject: str | None,
        rows: Sequence[bytes] = (),
    ) -> None:
        """
        One event: a row for each tensor as it is now, and `rows` that were packed before with -1 in the place of the event.

        Raises:
            DispatchmonError: a rule was met that asks for it.
        """
        entered = perf_counter_ns()
        buffer, values = self.buffer, self.values
        if not self.sees_writes:
            values.new_epoch()
        event = buffer.next_number()
        asked, touched = (values.measuring, values.reason), values.touched
        values.measuring, values.reason = values.statistics is not None, NOT_ASKED
        first = len(values.rows)
        try:
            with DisableTorchFunction():
                for argument, tensor in seen:
                    values.see(tensor if type(tensor) is Tensor else local_part(tensor), argument, event)
            for row in rows:
                values.add_row(pack_row(event, *ROW.unpack(row)[1:]))
        except Exception:
            self.failures += 1
        finally:
            (values.measuring, values.reason), values.touched = asked, touched  # to look is not to read
            buffer.add(pack_event(event, operator, 0, context, -1, node, source, start, duration))
        hits = [] if self.alerts is None else self.alerts.check(subject, values, first)
        for hit in hits:
            self.write_alert(hit, event, operator, context, node, source)
        now = perf_counter_ns()
        buffer.own_ns += now - entered
        if (len(values.rows) > buffer.full or now > buffer.deadline) and not buffer.nested:
            buffer.flush()
        if hits:
            self.alerts.announce(hits)  # type: ignore[union-attr]

    def write_alert(self, hit: Hit, cause: int, operator: int, context: int, node: int, source: int) -> None:
        """The row that met a rule once more, as an event of its own."""
        name = next(name for (name, _), number in self.operators.items() if number == operator)
        event = self.buffer.next_number()
        self.values.add_row(pack_row(event, *ROW.unpack(hit.row)[1:]))
        literal = self.tables.literals.add(hit.as_json())
        self.buffer.add(
            pack_event(
                event,
                self.operator(name, "alert"),
                literal,
                context,
                -1,
                node,
                source,
                perf_counter_ns(),
                ALERT - cause,
            )
        )

    def guarded(self, error: Exception) -> None:
        """Nothing that goes wrong while recording reaches the training loop, except what a rule asks for."""
        if isinstance(error, DispatchmonError):
            raise error
        self.failures += 1
