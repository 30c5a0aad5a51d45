"""
Which in-place writes took a value from somebody who still needed it.

A write is judged by the borders it crosses, never by its operator alone:

- `input-overwritten`: a call (of a module, of an autograd.Function) wrote over an argument, did not hand it back, and the
  old value is read afterwards; or it handed it back and its caller goes on using the old name; or it was an argument of
  the model itself, and the caller still has it.
- `alias-overwritten` and `parameter-write`: in `aliases.py` and `parameter_writes.py`, which are asked from here.

Arguments of the calls that are open are looked at when something is written, so a call costs next to nothing. What is kept
of a storage is in its tag and dies with its memory; of tensors there are weak references only.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from dispatchmon.hazards.aliases import Aliases
from dispatchmon.hazards.findings import PENDING, PLAN, Hazards, Victim, Write
from dispatchmon.hazards.frames import caller, frames, in_function, says_detach
from dispatchmon.hazards.histories import Histories, History, Overwrite
from dispatchmon.hazards.lines import argument_written, given_names
from dispatchmon.hazards.old_names import later_loads, loads_after, reads_old_name
from dispatchmon.hazards.parameter_writes import ParameterWrites
from dispatchmon.memory.regions import Region, overlap
from dispatchmon.module_tracker import ModuleTracker
from dispatchmon.operators.effects import (
    ACCUMULATES,
    COMPARES,
    CONTAINER,
    KEEPS_NOTHING,
    READS_NO_CONTENT,
    SNAPSHOTS,
    STORES,
)
from dispatchmon.operators.operands import operand, tensors_in
from dispatchmon.operators.plan import Plan
from dispatchmon.packed.records import Pending
from dispatchmon.torch_internals import DisableTorchFunction
from dispatchmon.values.containers import ATOMS, tensors_within
from dispatchmon.values.geometries import region_of
from dispatchmon.values.tags import EPOCH, HISTORY, WRITES
from dispatchmon.values.values import Values

Noted = tuple[str, list[Any], Region, "weakref.ref[Tensor]"]  # place, tag, region, tensor

# A module call that is open: what it was given (which the frames of the call hold as well), the tensors in containers
# among that (which may change during the call), and the first write to each of these, by id of the tag.
Call = list[Any]
ARGS, KEYWORDS, IN_CONTAINERS, TAKEN = range(4)
MOST_LINES = 8  # that a finding names


class Overwrites:
    """Follows the module calls of one thread, and the writes inside them."""

    def __init__(self, values: Values, tracker: ModuleTracker, hazards: Hazards, histories: Histories) -> None:
        self.values, self.tracker, self.hazards, self.histories = values, tracker, hazards, histories
        self.aliases = Aliases(values, histories, hazards)
        self.parameters = ParameterWrites(values, histories, hazards)
        self.given: list[Call | None] = []
        self.grad_at_entry = True
        self.outermost = 0  # number of the outermost call
        self.undecided: list[tuple[Overwrite, Any, list[Any]]] = []
        self.named: list[tuple[int, list[Any], Overwrite]] = []
        self.reported: set[Any] = set()

    # ------------------------------------------------------------------------------------------------- calls
    def enter(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """A module is called."""
        if not self.given:
            self.grad_at_entry = torch.is_grad_enabled()
            self.outermost += 1
            if self.undecided:
                with DisableTorchFunction():
                    self.judge_arguments()
        call: Call = [args, keywords, None, None]
        self.given.append(call)
        if not self.grad_at_entry:
            self.look_at(call)
            return
        for value in args if not keywords else (*args, *keywords.values()):
            if not isinstance(value, Tensor) and type(value) not in ATOMS:
                self.look_at(call)
                return

    def look_at(self, call: Call) -> None:
        """The tensors in containers, and the parameters, that a call is given."""
        with DisableTorchFunction():
            call[IN_CONTAINERS] = list(self.in_containers(call[ARGS], call[KEYWORDS]))
            if not self.grad_at_entry:
                for value in (*call[ARGS], *call[KEYWORDS].values()):
                    self.parameters.crosses(value, self.outermost)
                for _, tag, _, _ in call[IN_CONTAINERS]:
                    self.parameters.tag_crosses(tag, self.outermost)

    def skip(self) -> None:
        """A call that is not judged: of a checkpoint's recomputation, or in a step that is not recorded."""
        self.given.append(None)

    def in_containers(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> Iterator[Noted]:
        for place, value in (*((f"input[{i}]", a) for i, a in enumerate(args)), *keywords.items()):
            if not isinstance(value, Tensor):
                for where, tensor in tensors_within(value, place, objects=False):
                    if (tag := self.values.tag_of(tensor)) is not None:
                        yield where, tag, region_of(tensor), weakref.ref(tensor)

    def leave(self, depth: int, result: Any) -> None:
        """The call at this depth is over; `result` is None if it raised."""
        if len(self.given) <= depth:
            return
        call = self.given[depth]
        del self.given[depth:]
        while self.named and self.named[-1][0] > depth:  # the function that had the name has ended
            _, tag, overwrite = self.named.pop()
            self.drop(tag, overwrite)
        if call is not None and (call[TAKEN] or not self.given or not self.grad_at_entry):
            with DisableTorchFunction():
                self.judge_end(call, result)

    def judge_end(self, call: Call, result: Any) -> None:
        """A call is over that wrote over an argument, or was the outermost one, or ran without gradients."""
        if not self.grad_at_entry:
            self.parameters.crosses(result, self.outermost)
        if not self.given:
            self.read_by_return(result)
        for evidence in (call[TAKEN] or {}).values():
            self.call_took(result, *evidence)

    def call_took(
        self, result: Any, tag: list[Any], write: Write, entry: Any, region: Region, argument: str, reference: Any,
        lines: list[int],
    ) -> None:  # fmt: skip
        """A call that is over wrote over an argument."""
        handed_back = tensors_within(result, "", objects=True)
        if any(self.values.tag_of(t) is tag and overlap(region, region_of(t)) for _, t in handed_back):
            self.watch_old_name(tag, write, entry, region, argument)
            return
        overwrite = Overwrite("module", write, entry, argument, region, None, lines=tuple(lines))
        self.add(tag, overwrite)
        if self.given:
            return
        if ("input-overwritten", overwrite.place) in self.reported:
            self.report(overwrite, tag, None)
        elif self.tracker.path == "":
            self.undecided.append((overwrite, reference, tag))

    def watch_old_name(self, tag: list[Any], write: Write, entry: Any, region: Region, argument: str) -> None:
        """The caller has the overwritten value under its new name. Will it use the old one?"""
        frame = caller()
        if not self.given or frame is None:
            return
        if loads := later_loads(frame.f_code, frame.f_lasti):
            overwrite = Overwrite("name", write, entry, argument, region, None, (frame.f_code, frame.f_lasti, loads))
            self.named.append((len(self.given), tag, overwrite))
            self.add(tag, overwrite)

    def read_by_return(self, result: Any) -> None:
        """What the outermost call hands out is read by its caller."""
        for _, tensor in tensors_within(result, "", objects=True):
            tag = self.values.tag_of(tensor)
            if tag is not None and tag[EPOCH] < 0 and not self.histories.name_of(tag):
                region = region_of(tensor)
                taken = [o for o in self.histories.of(tag).overwrites if o.by == "module"]
                for overwrite in [o for o in taken if overlap(o.region, region)]:
                    self.drop(tag, overwrite)
                    self.report(overwrite, tag, None, returned=True)

    def judge_arguments(self) -> None:
        """Arguments of the model that it wrote over: does the caller still have them?"""
        undecided, self.undecided = self.undecided, []
        for overwrite, reference, tag in undecided:
            if reference() is not None and overwrite in self.histories.of(tag).overwrites:
                self.report(overwrite, tag, None)

    # ------------------------------------------------------------------------------------------------- operators
    def reads(self, plan: Plan, event: int, source: int, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> None:
        """An operator outside backward and optimizer uses memory that somebody wrote over."""
        if plan.effects & READS_NO_CONTENT:
            return
        written = [t for i, name, _ in plan.writes for t in tensors_in((operand(args, kwargs, i, name),))]
        for tensor in tensors_in((*args, *(kwargs or {}).values())):
            if plan.effects & KEEPS_NOTHING and any(tensor is w for w in written):
                continue
            tag = self.values.tag_of(tensor)
            if tag is not None and tag[EPOCH] < 0:
                victim = Victim(event, plan.name, self.tracker.path, source)
                self.read(victim, tensor, tag, self.histories.of(tag))

    def read(self, victim: Victim, tensor: Tensor, tag: list[Any], history: History) -> None:
        """This operator reads this tensor."""
        region = region_of(tensor)
        for overwrite in [o for o in history.overwrites if overlap(o.region, region)]:
            if overwrite.by == "function":
                if in_function():
                    continue
                if number_of(tensor) != overwrite.made_by:
                    self.drop(tag, overwrite)
                    continue
            if overwrite.old is not None:
                code, *loads = overwrite.old
                frame = next((f for c, f in frames(everything=True) if c is code), None)
                if frame is None or not reads_old_name(frame, *loads):
                    continue
            self.histories.set_overwrites(tag, [o for o in history.overwrites if o.place != overwrite.place])
            self.report(overwrite, tag, victim)
        self.aliases.read(victim, tensor, tag, history)

    def wrote(
        self, write: Write, written: list[tuple[Tensor, list[Any]]], args: Any, forward: bool, function: bool
    ) -> None:
        """An operator wrote these."""
        plan = write[PLAN]
        effects = plan.effects
        for tensor, tag in written:
            if tensor.requires_grad and len(tag[WRITES]) == 1 and is_leaf(tensor):
                self.aliases.trained(write, tensor, tag)
            history = tag[HISTORY]
            if history is not None:
                if history.overwrites and effects & KEEPS_NOTHING and not function:
                    region = region_of(tensor)
                    self.histories.set_overwrites(tag, [o for o in history.overwrites if o.region != region])
                self.aliases.wrote(write, tensor, tag, history)
            if not forward or not plan.moves_values:
                continue
            content = effects & STORES or (effects & ACCUMULATES and any(t.numel() > 1 for t in tensors_in(args[1:])))
            if history is not None and history.container:
                history.container = bool(content or effects & KEEPS_NOTHING)
            if name := self.histories.name_of(tag):
                if self.given and not self.grad_at_entry:
                    self.parameters.wrote(write, name, tensor, tag, self.outermost)
            elif not (history is not None and history.container and content):
                self.wrote_argument(write, tensor, tag, function)
                if not function:
                    self.wrote_for_a_caller(write, tensor, tag)

    def wrote_for_a_caller(self, write: Write, tensor: Tensor, tag: list[Any]) -> None:
        """A plain function wrote its argument and gives it back: does its caller have it under another name as well?"""
        sources = self.hazards.sources
        line = None if sources is None else sources.instruction(write[PENDING][5])
        written = None if line is None else argument_written(*line, write[PLAN].name)
        if line is None or written is None:
            return
        inner = next((f for c, f in frames(everything=True) if c is line[0]), None)
        outer = None if inner is None else inner.f_back
        if outer is None or sources is None or sources.libraries[outer.f_code.co_filename]:
            return
        names = given_names(outer.f_code, outer.f_lasti, *written)
        if names and (loads := loads_after(outer.f_code, outer.f_lasti, names)):
            region = region_of(tensor)
            known = [o for o in self.histories.of(tag).overwrites if o.by == "name" and o.region == region]
            if not known:
                old = outer.f_code, outer.f_lasti, loads
                overwrite = Overwrite("name", write, self.values.entry_of(tensor), written[1], region, None, old)
                self.named.append((len(self.given), tag, overwrite))
                self.add(tag, overwrite)

    def wrote_argument(self, write: Write, tensor: Tensor, tag: list[Any], function: bool) -> None:
        """Is this an argument of a call that is open?"""
        region = None
        storage = tensor.untyped_storage()
        for call in self.given:
            if call is None:
                continue
            if call[TAKEN] and id(tag) in call[TAKEN]:
                if (line := write[PENDING][5]) not in (also := call[TAKEN][id(tag)][-1]) and len(also) < MOST_LINES:
                    also.append(line)
                continue
            found: tuple[str, Any] | None = None
            for place, value in (*enumerate(call[ARGS]), *call[KEYWORDS].items()):
                if isinstance(value, Tensor) and shares(value, storage):
                    region = region or region_of(tensor)
                    if overlap(region_of(value), region):
                        found = f"input[{place}]" if isinstance(place, int) else place, weakref.ref(value)
                        break
            if found is None:
                for where, their_tag, their_region, reference in call[IN_CONTAINERS] or ():
                    if their_tag is tag and overlap(their_region, region := region or region_of(tensor)):
                        found = where, reference
                        break
            if found is not None and region is not None:
                call[TAKEN] = call[TAKEN] or {}
                call[TAKEN][id(tag)] = tag, write, self.values.entry_of(tensor), region, *found, [write[PENDING][5]]
        if function and not torch.is_grad_enabled() and (number := number_of(tensor)) is not None:
            history = self.histories.of(tag)
            if not history.overwrites:
                entry = self.values.entry_of(tensor)
                self.add(
                    tag, Overwrite("function", write, entry, "an argument of the function", region_of(tensor), number)
                )

    def made(self, plan: Plan, pending: Pending, result: Any, args: tuple[Any, ...], frame: FrameType) -> None:
        """A container was made, a tensor detached, or two compared."""
        if plan.effects & COMPARES:
            self.aliases.compared(args, Victim(pending[0], plan.name, self.tracker.path, pending[5]))
            return
        if plan.effects & CONTAINER:
            if isinstance(result, Tensor) and (tag := self.values.tag_of(result)) is not None:
                self.histories.of(tag).container = True
        elif plan.effects & SNAPSHOTS and says_detach(frame):
            self.aliases.taken(args[0], pending[0], pending[5], result)

    # ------------------------------------------------------------------------------------------------- what is known
    def add(self, tag: list[Any], overwrite: Overwrite) -> None:
        self.histories.set_overwrites(tag, [*self.histories.of(tag).overwrites, overwrite])

    def drop(self, tag: list[Any], overwrite: Overwrite) -> None:
        self.histories.set_overwrites(tag, [o for o in self.histories.of(tag).overwrites if o is not overwrite])

    def report(self, overwrite: Overwrite, tag: list[Any], victim: Victim | None, **details: Any) -> None:
        if len(overwrite.lines) > 1:
            details["lines"] = [self.hazards.line(line) for line in overwrite.lines]
        self.reported.add(("input-overwritten", overwrite.place))
        self.hazards.add(
            "input-overwritten", overwrite.write, overwrite.entry, tag, victim, overwrite.argument, taker=overwrite.by,
            given=overwrite.argument, **details,
        )  # fmt: skip


def shares(tensor: Tensor, storage: Any) -> bool:
    """Whether this is the tensor's memory."""
    try:
        return tensor.untyped_storage() is storage
    except (NotImplementedError, RuntimeError):  # sparse, mkldnn
        return False


def is_leaf(tensor: Tensor) -> bool:
    """Whether a tensor is a leaf. A view is not asked: one that is out of date would raise."""
    return not tensor._is_view() and tensor.is_leaf


def number_of(tensor: Tensor) -> int | None:
    """Number of the autograd node that made a tensor; None for a view, whose node may be made only when it is asked for."""
    if tensor.is_inference() or tensor._is_view() or tensor.grad_fn is None:
        return None
    number: int = tensor.grad_fn._sequence_nr()
    return number
