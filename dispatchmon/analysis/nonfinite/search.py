"""
One pass over the events: every non-finite element gets the finding that it descends from.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from dispatchmon.analysis.nonfinite.behaviour import Behaviour, behaviour, can_create, element, reads
from dispatchmon.analysis.nonfinite.findings import (
    DELIBERATE,
    EXTERNAL,
    ORIGIN,
    READ_UNWRITTEN,
    TURNED,
    UNWRITTEN,
    Finding,
)
from dispatchmon.analysis.nonfinite.memory import Labels, Memory, covers
from dispatchmon.analysis.nonfinite.questions import Questions
from dispatchmon.analysis.nonfinite.rows import Event, Row, Wanted
from dispatchmon.analysis.nonfinite.rules import Seen, judge, seen
from dispatchmon.analysis.nonfinite.unwritten import UnwrittenMemory
from dispatchmon.memory.cells import Mask, as_cells, elements

MOST_NAN = 20_000  # events whose results hold NaN that are followed: then it is everywhere
MOST_EVENTS = 300_000  # events with any non-finite result; masks make two in every layer


class Search:
    """What is known after the events so far."""

    def __init__(self, wanted: Wanted, parameters: frozenset[str] = frozenset()) -> None:
        self.wanted, self.parameters = wanted, parameters
        self.followed = set(wanted.storages)
        self.findings: list[Finding] = []
        self.by_key: dict[tuple[int, str], Finding] = {}
        self.memory = Memory()
        self.unwritten = UnwrittenMemory(self.unwritten_was_read, self.followed.add)
        self.writers: dict[int, list[Row]] = {}  # storage -> the non-finite writes that still show
        self.sources: dict[int, list[int]] = {}  # event -> events that made its non-finite inputs
        self.roots: dict[int, set[int]] = {}  # event -> findings that its results descend from
        self.events: dict[int, Event] = {}  # those with non-finite results
        self.nan_events = 0
        self.last_read: dict[int, int] = {}
        self.last_choice: dict[int, int] = {}  # the same, of operators that made whole numbers of it: argmax, multinomial
        self.last_write: dict[int, int] = {}
        self.names: dict[int, str] = {}
        self.arriving: dict[int, set[int]] = {}  # results of collectives: the findings that went in
        self.brought: dict[int, Row] = {}  # results of collectives: the last that wrote them
        self.sent: list[tuple[Row, set[int]]] = []  # collectives that this rank sent findings into
        self.literals: set[int] = set()  # storages that were written down as nothing but Inf, as `torch.tensor(-inf)`
        self.questions = Questions(self.followed.add)
        self.raised: dict[int, int] = {}  # storage -> the event that raised when it read it
        self.scaler: list[tuple[int, bool]] = []  # event of each of GradScaler's checks, whether it found an Inf
        self.scales: list[float] = []
        self.used_scales: set[float | None] = set()  # those that losses were multiplied with
        self.stopped: Row | None = None  # where following ended, if it did

    def run(self, events: Iterable[Event]) -> None:
        """Look at all events."""
        dying: dict[int, list[int]] = {}
        for storage, last in self.wanted.last.items():
            dying.setdefault(last, []).append(storage)
        for event in events:
            if event.first.role is not None:
                self.event(event)
                for storage in dying.get(event.first.event, ()):
                    self.memory.forget(storage)
                    self.writers.pop(storage, None)
            if self.nan_events >= MOST_NAN or len(self.events) >= MOST_EVENTS:
                self.stopped = event.first
                return

    def finding(self, kind: str, row: Row, key: int | None = None) -> Finding:
        """The finding of this kind at this event."""
        at = (row.event if key is None else key), kind
        found = self.by_key.get(at)
        if found is None:
            found = self.by_key[at] = Finding(len(self.findings), kind, row)
            self.findings.append(found)
        return found

    # ------------------------------------------------------------------------------------------------- one event
    def event(self, event: Event) -> None:
        """Follow one event."""
        op, number = event.first.op, event.first.event
        b = behaviour(op)
        view = b is not None and b.view and not any(row.written for row in event.rows)
        for row in event.rows:
            if row.name is not None and row.storage is not None:
                self.names[row.storage] = row.name
        if op == "aten.lift_fresh.default" and all(row.inf and row.inf == row.numel for row in event.outputs):
            self.literals.update(row.storage for row in event.outputs if row.storage is not None)
        if view:
            self.became_gradients(event)
            return
        if event.raised and number == self.wanted.end:  # nobody went on after it
            self.raised.update({row.storage: number for row in event.inputs if row.storage is not None})
        outs = event.outputs
        self.delivered(event)
        used = [row for row in event.inputs if reads(b, row)]
        if any(out.dtype != "bool" for out in outs):  # isnan, item, a comparison look at a value without using it
            for row in used:
                if row.storage is not None:
                    self.last_read[row.storage] = number
        if any(out.dtype is not None and "int" in out.dtype for out in outs):
            self.last_choice |= {row.storage: number for row in event.inputs if row.storage is not None}
        for out in outs:
            if out.storage is not None:
                self.last_write[out.storage] = number
        self.unwritten.event(event, b, used)
        self.questions.event(event)
        self.scaler_event(event)
        inputs = [self.input(row) for row in used if row.nonfinite]
        bad = [out for out in outs if out.nonfinite]
        if event.allocates:
            return
        if "c10d" in op:
            self.collective(event, inputs, bad)
            return
        shown: set[int] = set()
        for out in outs:
            if not out.nonfinite:
                self.memory.write(out, {})
                self.wrote(out)
                continue
            shown |= self.result(event, b, out, self.matching(out, inputs), used)
        incoming = {root for each in inputs for root in each.labels}
        if inputs and any(out.dtype != "bool" for out in outs):
            for root in incoming - shown:
                self.findings[root].cleared_by.append(number)
        if bad:
            self.remember(event, inputs, shown)
            if b is None or can_create(b, bad[0], event.inputs):
                for root in incoming & shown:
                    self.findings[root].arithmetic = True

    def became_gradients(self, event: Event) -> None:
        """What backward accumulates is named in the end, when it has become a parameter's gradient."""
        for row in event.outputs:
            if row.nonfinite and row.name is not None and row.name.endswith(".grad"):
                self.is_gradient(row, self.memory.read(row, seen(row).nonfinite))

    def is_gradient(self, row: Row, roots: Iterable[int]) -> None:
        """A value is a parameter's gradient, and was before it had the name."""
        made = [w.event for w in self.writers.get(row.storage or 0, ())] or [row.event]
        for root in roots:
            self.findings[root].spread.setdefault("gradient", (made[-1], row.name))

    @staticmethod
    def matching(out: Row, inputs: list[Seen]) -> list[Seen]:
        """Of an operator on lists, the inputs with the place of the result."""
        if "_foreach_" not in out.op and "_fused_" not in out.op or not (place := element(out.arg)):
            return inputs
        return [each for each in inputs if element(each.row.arg) in ("", place)]

    def remember(self, event: Event, inputs: list[Seen], shown: set[int]) -> None:
        """Keep what the chains need of an event with non-finite results."""
        number = event.first.event
        if any(row.nan for row in event.outputs):
            self.nan_events += 1
        elif all(self.findings[root].kind == DELIBERATE for root in shown):  # a mask: one row is enough
            row = next(row for row in event.outputs if row.nonfinite)
            row.arguments = event.first.arguments
            event = Event([row])
        self.events[number] = event
        self.roots[number] = shown
        self.sources[number] = self.parents(inputs)
        for row in event.rows:
            row.cells = None

    def parents(self, inputs: list[Seen]) -> list[int]:
        """The events that wrote these non-finite values, nearest first."""
        found = {
            w.event for each in inputs if each.row.storage is not None for w in self.writers.get(each.row.storage, ())
        }
        return sorted(found, reverse=True)

    def wrote(self, out: Row) -> None:
        """Note a write of a value, in place of those that it covers."""
        if out.storage is None or not out.placed:
            return
        left = [w for w in self.writers.get(out.storage, ()) if not covers(out, w)][-8:]
        self.writers[out.storage] = [*left, out] if out.nonfinite else left

    # ------------------------------------------------------------------------------------------------- inputs
    def input(self, row: Row) -> Seen:
        """A non-finite input, with what its elements descend from; what descends from nothing came from outside."""
        value = seen(row)
        if value.nonfinite.shape != (row.shape or ()) or not row.placed:
            known = self.memory.storages.get(row.storage if row.storage is not None else -1)
            roots = {*known.whole, *known.cells} if known is not None else set()
            value.labels = dict.fromkeys(roots or {self.outside(row)}, value.nonfinite)
            return value
        value.labels = self.memory.read(row, value.nonfinite)
        if row.name is not None and row.name.endswith(".grad"):  # it became one after it was made
            self.is_gradient(row, value.labels)
        named = np.zeros(row.shape or (), bool)
        for mask in value.labels.values():
            named = named | mask
        assert row.stride is not None
        rest = as_cells(value.nonfinite, row.stride) & ~as_cells(named, row.stride)
        if rest.any() and (value.known or not value.labels):
            self.unnamed(row, value, elements(rest, row.shape or (), row.stride) & value.nonfinite)
        if row.name is not None and row.name.endswith(".grad"):
            self.is_gradient(row, (root for root in value.labels if self.findings[root].collective is not None))
        return value

    def unnamed(self, row: Row, value: Seen, rest: Mask) -> None:
        """Elements that descend from nothing: unwritten memory, a collective's result, or from outside."""
        missing = self.unwritten.unwritten(row)
        if missing is not None and (missing[1] & rest).any():
            found = self.finding(UNWRITTEN, missing[0])
            found.made.add("nan" if row.nan else "inf")
            roots = {found.number}
        elif arrived := self.arriving.get(row.storage if row.storage is not None else -1):
            roots = arrived
        else:
            roots = {self.outside(row)}
        for root in roots:
            value.labels[root] = value.labels[root] | rest if root in value.labels else rest
            self.memory.add(row, root, rest)

    def outside(self, row: Row) -> int:
        """A value that was non-finite when it was first seen: the batch, a loaded parameter, a write nobody saw."""
        found = self.finding(EXTERNAL, row, row.storage)
        found.made |= {"nan"} if row.nan else {"inf"}
        found.mask = row.storage in self.literals
        found.collective = found.collective or self.brought.get(row.storage if row.storage is not None else -1)
        return found.number

    # ------------------------------------------------------------------------------------------------- results
    def result(self, event: Event, b: Behaviour | None, out: Row, inputs: list[Seen], used: list[Row]) -> set[int]:
        """Judge one non-finite result; the findings that it descends from."""
        value = seen(out)
        verdict = judge(event, b, value, inputs)
        labels: Labels = dict(verdict.labels)
        where = value.nonfinite

        def begin(kind: str, what: str, mask: Mask | None) -> Finding:
            found = self.finding(kind, out)
            found.made.add(what)
            found.inputs_finite = not inputs
            found.parents = self.parents(inputs)
            found.unmeasured |= any(row.is_float and row.nan is None and row.inf is None for row in used)
            mask = where if mask is None or not mask.any() else mask
            if not found.counts and value.known:
                found.counts = {k: int((cells & mask).sum()) for k, cells in value.maps.items()}
            labels[found.number] = labels[found.number] | mask if found.number in labels else mask
            return found

        constants, argument = event.constants, event.non_finite_argument
        # nobody gives an optimizer a number that is not finite on purpose: it was calculated, from a learning rate say
        told = ORIGIN if argument is not None and event.first.phase == "optimizer" else DELIBERATE
        if verdict.born_nan:
            kind = told if "n" in constants else TURNED if constants else ORIGIN
            begin(kind, "nan", verdict.born).argument = argument
        if verdict.born_inf:
            begin(told if "i" in constants else ORIGIN, "inf", verdict.born).argument = argument
        if verdict.turned:
            found = begin(TURNED, "nan", verdict.turns)
            causes = verdict.used_up or {root for each in inputs for root in each.labels}
            found.causes |= causes - {found.number}
            for cause in causes - {found.number}:
                self.findings[cause].became.add(found.number)
        if not labels:  # nothing explains it: it descends from whatever went in
            labels = dict.fromkeys((root for each in inputs for root in each.labels), where)
        self.memory.write(out, labels)
        self.wrote(out)
        for root in labels:
            self.spread(self.findings[root], event, out)
        return set(labels)

    def spread(self, found: Finding, event: Event, out: Row) -> None:
        """Note the places that matter which a finding has reached."""
        storage, number = out.storage, event.first.event
        if storage is None:
            return
        name = out.name or self.names.get(storage)
        if (storage, out.version or 0) in self.wanted.losses:
            found.spread.setdefault("loss", (number, None))
        if name is not None:
            found.spread.setdefault(self.kind_of(name, event.first.phase == "optimizer"), (number, name))
        elif event.first.phase == "optimizer" and out.written:
            found.spread.setdefault("state", (number, None))
        elif (
            out.written
            or out.arg == "out0"
            or "_foreach_" in out.op
            or not any(o.arg == "out0" and not o.nonfinite for o in event.outputs)
        ):
            found.ends[storage] = number

    def kind_of(self, name: str, in_optimizer: bool) -> str:
        """What a named tensor is."""
        if name.endswith(".grad"):
            return "gradient"
        if name in self.parameters or in_optimizer and not self.parameters:
            return "parameter"
        return "state" if in_optimizer else "buffer"

    def collective(self, event: Event, inputs: list[Seen], bad: list[Row]) -> None:
        """What other ranks sent is nobody's making here: it descends from what this rank sent, or from outside."""
        roots = {root for each in inputs for root in each.labels}
        for out in event.outputs:
            if out.storage is None:
                continue
            self.arriving[out.storage] = roots | self.arriving.get(out.storage, set())
            self.brought[out.storage] = event.first
            if out.nonfinite:
                value = seen(out)
                labels = dict.fromkeys(self.arriving[out.storage] or {self.outside(out)}, value.nonfinite)
                self.memory.write(out, labels)
                self.wrote(out)
                for root in labels:
                    self.spread(self.findings[root], event, out)
            self.followed.add(out.storage)
        if roots:
            self.sent.append((event.first, roots))
        if bad:
            self.remember(event, inputs, roots)

    def delivered(self, event: Event) -> None:
        """
        A backend may deliver by `copy_`, from memory of its own, into the result that is waited for.

        What it takes it from is then what the collective brought, as in gloo's reduce-scatter.
        """
        if event.operation != "copy":
            return
        for out in event.outputs:
            storage = out.storage if out.storage is not None else -1
            brought = self.brought.get(storage)
            if brought is None or self.last_write.get(storage) != brought.event:
                continue
            for row in event.inputs:
                unseen = row.storage not in self.last_write and row.storage not in self.last_read
                if row.storage is not None and unseen and not row.written:
                    self.arriving[row.storage], self.brought[row.storage] = self.arriving[storage], brought

    # ------------------------------------------------------------------------------------------------- the rest
    def unwritten_was_read(self, allocator: Row, reader: Row, written: float) -> int:
        """Unwritten memory was used for the first time."""
        found = self.finding(READ_UNWRITTEN, allocator)
        if found.reader is None:
            found.reader, found.written = reader, written
        return found.number

    def scaler_event(self, event: Event) -> None:
        """Note what a GradScaler does."""
        op = event.first.op
        if op.startswith("aten._amp_foreach_non_finite_check"):
            found = any((row.max or 0) > 0 for row in event.outputs if row.arg == "found_inf")
            self.scaler.append((event.first.event, found))
            self.used_scales |= {1 / row.max for row in event.inputs if row.arg == "inv_scale" and row.max}
        elif op.startswith("aten._amp_update_scale_"):
            self.scales += [row.max for row in event.outputs if row.arg == "self" and row.max is not None]
            self.used_scales |= {row.max for row in event.inputs if row.arg == "self"}
        elif op.startswith("aten._fused_"):
            self.used_scales |= {row.max for row in event.inputs if row.arg == "grad_scale"}

    def ancestors(self, found: Finding) -> list[Finding]:
        """
        The findings that it was made of, and those that these were made of.

        A mask is among them only if there is nothing else: it does no harm where everything else is finite.
        """
        known: dict[int, Finding] = {}
        todo = sorted(found.causes)
        while todo:
            cause = self.findings[todo.pop()]
            if cause.number not in known:
                known[cause.number] = cause
                todo += sorted(cause.causes)
        began = [each for each in known.values() if each.kind != TURNED]
        if all(each.is_mask for each in began):
            return list(known.values())
        return [each for each in known.values() if not each.is_mask]

    def chain(self, found: Finding) -> list[int]:
        """The events that led to a finding, nearest first, back to where the values it was made of began."""
        if found.kind != TURNED:
            return []
        ancestors = {each.number for each in self.ancestors(found)}
        pending, known = set(found.parents), set()
        while pending:
            event = max(pending)
            pending.discard(event)
            if event in known or event >= found.event or not self.roots.get(event, set()) & ancestors:
                continue
            known.add(event)
            pending |= set(self.sources.get(event, ()))
        known |= {self.findings[cause].event for cause in ancestors}
        return sorted(known - {found.event}, reverse=True)
