"""
Which in-place writes took a value from somebody who still needed it.

A write is judged by the borders it crosses, never by its operator alone:

- `input-overwritten`: a call (of a module, of an autograd.Function) wrote over an argument, did not hand it back, and the
  old value is read afterwards; or it handed it back and its caller goes on using the old name; or it was an argument of
  the model itself, and the caller still has it.
- `alias-overwritten`: what `detach()` or `state_dict()` gave before a write is read after it.
- `parameter-write`: a forward without gradients wrote where autograd would have refused with gradients.

Arguments of the calls that are open are looked at when something is written, so a call costs next to nothing. What is kept
of a storage is in its tag and dies with its memory; of tensors there are weak references only.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dispatchmon.hazards.findings import PATH, PENDING, PLAN, Hazards, Note, Victim
from dispatchmon.hazards.old_names import calls_method, is_function, later_loads, reads_old_name
from dispatchmon.hazards.saved_values import region_of, tensors_in
from dispatchmon.memory.regions import Region, overlap
from dispatchmon.module_tracker import ModuleTracker
from dispatchmon.operators.effects import (
    ACCUMULATES,
    CONTAINER,
    KEEPS_NOTHING,
    LIMITS_NORMS,
    READS_NO_CONTENT,
    SNAPSHOTS,
    STORES,
)
from dispatchmon.operators.plans import Plan
from dispatchmon.torch_internals import OURS, TORCH, DisableTorchFunction, call_implementation
from dispatchmon.values.values import EPOCH, HISTORY, LABEL, Values

DEEPEST = 6  # of nested containers
_ATOMS = frozenset({int, float, bool, str, type(None), torch.dtype, torch.device})
_MACHINERY = tuple(
    TORCH + where for where in ("_dynamo", "_compile.py", "_ops.py", os.path.join("utils", "_python_dispatch.py"))
)
_INITIALISERS = tuple(os.path.join(TORCH, "nn", *where) for where in (("init.py",), ("modules", "lazy.py")))
Noted = tuple[str, list[Any], Region, "weakref.ref[Tensor]"]  # place, tag, region, tensor


class Theft(NamedTuple):
    """A write over what somebody else owns."""

    taker: str  # module, function, or name: handed back, but the old name is in use
    note: Note
    entry: Any
    argument: str
    region: Region
    made_by: int | None  # of a function: number of the argument's node; another one since: it was declared dirty
    old: tuple[CodeType, int, Any] | None = None  # of a name: the caller, its call, later loads of the name

    @property
    def place(self) -> tuple[int, str | None, int]:
        return self.note[PLAN].operator, self.note[PATH], self.note[PENDING][5]


class History:
    """What is known of one storage."""

    __slots__ = ("container", "crossed", "overwritten", "snapshot", "tensor", "thefts")

    def __init__(self) -> None:
        self.thefts: list[Theft] = []
        self.container = False  # made empty or zero, and only stored and accumulated into since
        self.snapshot = -1  # event of the newest detach
        self.tensor: Any = None  # weak reference to what was detached last
        self.overwritten: Any = None  # (note, entry, weak reference to the written tensor): the first write after it
        self.crossed = -1  # outermost call in which the parameter itself crossed a border


# A module call that is open: what it was given (which the frames of the call hold as well), the tensors in containers
# among that (which may change during the call), and the first write to each of these, by id of the tag.
Call = list[Any]
ARGS, KEYWORDS, IN_CONTAINERS, TAKEN = range(4)


class Borders:
    """Follows the module calls of one thread, and the writes inside them."""

    def __init__(
        self,
        values: Values,
        tracker: ModuleTracker,
        hazards: Hazards,
        owned: dict[str, tuple[weakref.ref[nn.Module], str]],
    ) -> None:
        self.values, self.tracker, self.hazards, self.owned = values, tracker, hazards, owned
        self.given: list[Call | None] = []
        self.grad_at_entry = True
        self.root = 0  # number of the outermost call
        self.undecided: list[tuple[Theft, Any, list[Any]]] = []
        self.named: list[tuple[int, list[Any], Theft]] = []
        self.reported: set[Any] = set()
        self.hosts = values.labels

    # ------------------------------------------------------------------------------------------------- calls
    def enter(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """A module is called."""
        if not self.given:
            self.grad_at_entry = torch.is_grad_enabled()
            self.root += 1
            if self.undecided:
                with DisableTorchFunction():
                    self.judge_arguments()
        call: Call = [args, keywords, None, None]
        self.given.append(call)
        if not self.grad_at_entry:
            self.look_at(call)
            return
        for value in args if not keywords else (*args, *keywords.values()):
            if not isinstance(value, Tensor) and type(value) not in _ATOMS:
                self.look_at(call)
                return

    def look_at(self, call: Call) -> None:
        """The tensors in containers, and the parameters, that a call is given."""
        with DisableTorchFunction():
            call[IN_CONTAINERS] = list(self.in_containers(call[ARGS], call[KEYWORDS]))
            if not self.grad_at_entry:
                for value in (*call[ARGS], *call[KEYWORDS].values()):
                    self.crosses(value)
                for _, tag, _, _ in call[IN_CONTAINERS]:
                    if self.name_of(tag):
                        self.history(tag).crossed = self.root

    def skip(self) -> None:
        """A call that is not judged: of a checkpoint's recomputation, or in a step that is not recorded."""
        self.given.append(None)

    def crosses(self, value: Any) -> None:
        """A parameter that is an argument or a result in a forward without gradients."""
        if isinstance(value, Tensor) and (tag := self.values.tag_of(value)) is not None and self.name_of(tag):
            self.history(tag).crossed = self.root

    def in_containers(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> Iterator[Noted]:
        for place, value in (*((f"input[{i}]", a) for i, a in enumerate(args)), *keywords.items()):
            if not isinstance(value, Tensor):
                for where, tensor in leaves(value, place, DEEPEST, objects=False):
                    if (tag := self.values.tag_of(tensor)) is not None:
                        yield where, tag, region_of(tensor), weakref.ref(tensor)

    def leave(self, depth: int, result: Any) -> None:
        """The call at this depth is over; `result` is None if it raised."""
        if len(self.given) <= depth:
            return
        call = self.given[depth]
        del self.given[depth:]
        while self.named and self.named[-1][0] > depth:  # the function that had the name has ended
            _, tag, theft = self.named.pop()
            history = self.history(tag)
            self.set_thefts(tag, [t for t in history.thefts if t is not theft])
        if call is not None and (call[TAKEN] or not self.given or not self.grad_at_entry):
            with DisableTorchFunction():
                self.judge_end(call, result)

    def judge_end(self, call: Call, result: Any) -> None:
        """A call is over that wrote over an argument, or was the outermost one, or ran without gradients."""
        if not self.grad_at_entry:
            self.crosses(result)
        if not self.given:
            self.read_by_return(result)
        for evidence in (call[TAKEN] or {}).values():
            self.call_took(result, *evidence)

    def call_took(
        self, result: Any, tag: list[Any], note: Note, entry: Any, region: Region, argument: str, reference: Any
    ) -> None:
        """A call that is over wrote over an argument."""
        if any(self.values.tag_of(t) is tag and overlap(region, region_of(t)) for _, t in leaves(result, "", DEEPEST)):
            self.watch_old_name(tag, note, entry, region, argument)
            return
        theft = Theft("module", note, entry, argument, region, None)
        history = self.history(tag)
        self.set_thefts(tag, [*history.thefts, theft])
        if self.given:
            return
        if ("input-overwritten", theft.place) in self.reported:
            self.report(theft, tag, None)
        elif self.tracker.path == "":
            self.undecided.append((theft, reference, tag))

    def watch_old_name(self, tag: list[Any], note: Note, entry: Any, region: Region, argument: str) -> None:
        """The caller has the overwritten value under its new name. Will it use the old one?"""
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame.f_code.co_filename.startswith(OURS):
            frame = frame.f_back
        if not self.given or frame is None or frame.f_code.co_filename.startswith(TORCH):
            return
        if loads := later_loads(frame.f_code, frame.f_lasti):
            theft = Theft("name", note, entry, argument, region, None, (frame.f_code, frame.f_lasti, loads))
            self.named.append((len(self.given), tag, theft))
            self.set_thefts(tag, [*self.history(tag).thefts, theft])

    def read_by_return(self, result: Any) -> None:
        """What the outermost call hands out is read by its caller."""
        for _, tensor in leaves(result, "", DEEPEST):
            tag = self.values.tag_of(tensor)
            if tag is not None and tag[EPOCH] < 0 and not self.name_of(tag):
                region, history = region_of(tensor), self.history(tag)
                for theft in [t for t in history.thefts if t.taker == "module" and overlap(t.region, region)]:
                    self.set_thefts(tag, [t for t in history.thefts if t is not theft])
                    self.report(theft, tag, None, returned=True)

    def judge_arguments(self) -> None:
        """Arguments of the model that it wrote over: does the caller still have them?"""
        undecided, self.undecided = self.undecided, []
        for theft, reference, tag in undecided:
            if reference() is not None and theft in self.history(tag).thefts:
                self.report(theft, tag, None)

    # ------------------------------------------------------------------------------------------------- operators
    def reads(self, plan: Plan, event: int, source: int, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> None:
        """An operator outside backward and optimizer uses memory that somebody wrote over."""
        if plan.effects & READS_NO_CONTENT:
            return
        written = [t for i, name, _ in plan.writes for t in tensors_in((argument(args, kwargs, i, name),))]
        for tensor in tensors_in((*args, *(kwargs or {}).values())):
            if plan.effects & KEEPS_NOTHING and any(tensor is w for w in written):
                continue
            tag = self.values.tag_of(tensor)
            if tag is not None and tag[EPOCH] < 0:
                victim = Victim(event, plan.name, self.tracker.path, source)
                self.read(victim, tensor, tag, self.history(tag))

    def read(self, victim: Victim, tensor: Tensor, tag: list[Any], history: History) -> None:
        region = region_of(tensor)
        for theft in [t for t in history.thefts if overlap(t.region, region)]:
            if theft.taker == "function":
                if any(is_function(code) for code, _ in frames()):
                    continue
                if number_of(tensor) != theft.made_by:
                    self.set_thefts(tag, [t for t in history.thefts if t is not theft])
                    continue
            if theft.old is not None:
                code, *loads = theft.old
                frame = next((f for c, f in frames(everything=True) if c is code), None)
                if frame is None or not reads_old_name(frame, *loads):
                    continue
            self.set_thefts(tag, [t for t in history.thefts if t.place != theft.place])
            self.report(theft, tag, victim)
        if history.overwritten and not tensor._is_view() and not tensor.is_inference():
            self.read_alias(victim, tensor, tag, history)

    def read_alias(self, victim: Victim, tensor: Tensor, tag: list[Any], history: History) -> None:
        """A tensor with the version counter of the one that was written, but neither that nor its owner."""
        note, entry, reference = history.overwritten
        name = self.name_of(tag)
        owner, writer = self.owner(tag, history), reference() if reference is not None else None
        known = writer if owner is None else owner
        if tensor is owner or tensor is writer or known is None:
            return
        if 0 < tensor._version == known._version and (not name or tensor.shape == known.shape):
            taken_at, history.overwritten, history.snapshot = history.snapshot, None, -1
            self.watch(tag, history)
            self.hazards.add("alias-overwritten", note, entry, tag, victim, taken_at=taken_at)

    def wrote(
        self, note: Note, written: list[tuple[Tensor, list[Any]]], args: Any, forward: bool, function: bool
    ) -> None:
        """An operator wrote these."""
        plan = note[PLAN]
        effects = plan.effects
        for tensor, tag in written:
            history = tag[HISTORY]
            if history is not None:
                if history.thefts and effects & KEEPS_NOTHING and not function:
                    region = region_of(tensor)
                    self.set_thefts(tag, [t for t in history.thefts if t.region != region])
                if history.snapshot >= 0 and history.overwritten is None:
                    reference = None if tensor is self.owner(tag, history) else weakref.ref(tensor)
                    history.overwritten = note, self.values.entry_of(tensor), reference
                    self.watch(tag, history)
            if not forward or not plan.moves_values:
                continue
            content = effects & STORES or (effects & ACCUMULATES and any(t.numel() > 1 for t in tensors_in(args[1:])))
            if history is not None and history.container:
                history.container = bool(content or effects & KEEPS_NOTHING)
            if name := self.name_of(tag):
                if self.given and not self.grad_at_entry:
                    self.judge_named(note, name, tensor, tag)
            elif not (history is not None and history.container and content):
                self.wrote_argument(note, tensor, tag, function)

    def wrote_argument(self, note: Note, tensor: Tensor, tag: list[Any], function: bool) -> None:
        region = None
        storage = tensor.untyped_storage()
        for call in self.given:
            if call is None or (call[TAKEN] and id(tag) in call[TAKEN]):
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
                call[TAKEN][id(tag)] = tag, note, self.values.entry_of(tensor), region, *found
        if function and not torch.is_grad_enabled() and (number := number_of(tensor)) is not None:
            history = self.history(tag)
            if not history.thefts:
                entry = self.values.entry_of(tensor)
                theft = Theft("function", note, entry, "an argument of the function", region_of(tensor), number)
                self.set_thefts(tag, [theft])

    def judge_named(self, note: Note, name: str, tensor: Tensor, tag: list[Any]) -> None:
        """A parameter is written in a forward without gradients."""
        history = tag[HISTORY]
        owner = self.owner(tag, history)
        if owner is None or not owner.requires_grad or note[PLAN].effects & LIMITS_NORMS:
            return
        crossed = history is not None and history.crossed == self.root
        astray = (tensor is owner and crossed) or tensor._base is owner  # not `self.weight.mul_()`
        if astray and not any(code.co_filename in _INITIALISERS for code, _ in frames(everything=True)):
            self.hazards.add("parameter-write", note, self.values.entry_of(tensor), tag, None, parameter=name)

    def blocked(self, plan: Plan, pending: Any, tensor: Tensor | None, error: str) -> None:
        """An operator refused to write this."""
        if tensor is not None:
            note = pending, plan, self.tracker.path, -1
            entry, tag = self.values.entry_of(tensor), self.values.tag_of(tensor)
            self.hazards.add("blocked-write", note, entry, tag, None, loud=True, error=short(error))

    def made(self, plan: Plan, result: Any, args: tuple[Any, ...], event: int, frame: FrameType) -> None:
        """A container was made, or a tensor detached."""
        if plan.effects & CONTAINER:
            if isinstance(result, Tensor) and (tag := self.values.tag_of(result)) is not None:
                self.history(tag).container = True
        elif plan.effects & SNAPSHOTS and asked_for(frame):
            tag = self.values.tag_of(args[0])
            if tag is not None:
                history = self.history(tag)
                history.snapshot, history.overwritten = event, None
                if not self.name_of(tag):
                    history.tensor = weakref.ref(args[0])
                self.watch(tag, history)

    # ------------------------------------------------------------------------------------------------- what is known
    @staticmethod
    def history(tag: list[Any]) -> History:
        history: History | None = tag[HISTORY]
        if history is None:
            history = tag[HISTORY] = History()
        return history

    def set_thefts(self, tag: list[Any], thefts: list[Theft]) -> None:
        history = self.history(tag)
        history.thefts = thefts
        self.watch(tag, history)

    @staticmethod
    def watch(tag: list[Any], history: History) -> None:
        """From now on reads of this memory matter, or no longer."""
        watched = bool(history.thefts or history.overwritten)
        if watched != (tag[EPOCH] < 0):
            tag[EPOCH] = ~tag[EPOCH]

    def name_of(self, tag: list[Any]) -> str | None:
        """The name of the parameter or buffer whose memory this is."""
        if not tag[LABEL]:
            return None
        return next((n for _, _, n in self.hosts.items[tag[LABEL]][1] if n in self.owned), None)

    def owner(self, tag: list[Any], history: History | None) -> Any:
        """The parameter or buffer itself, or of other memory what was detached last."""
        name = self.name_of(tag)
        if name is not None:
            module, key = self.owned[name][0](), self.owned[name][1]
            if module is None:
                return None
            parameter = module._parameters.get(key)
            return parameter if parameter is not None else module._buffers.get(key)
        return history.tensor() if history is not None and history.tensor is not None else None

    def report(self, theft: Theft, tag: list[Any], victim: Victim | None, **details: Any) -> None:
        self.reported.add(("input-overwritten", theft.place))
        self.hazards.add(
            "input-overwritten", theft.note, theft.entry, tag, victim, theft.argument, taker=theft.taker,
            given=theft.argument, **details,
        )  # fmt: skip


def argument(args: tuple[Any, ...], kwargs: dict[str, Any] | None, position: int, name: str) -> Any:
    """An argument of a call, by position or by name."""
    return args[position] if position < len(args) else kwargs.get(name) if kwargs else None


def shares(tensor: Tensor, storage: Any) -> bool:
    """Whether this is the tensor's memory."""
    try:
        return tensor.untyped_storage() is storage
    except (NotImplementedError, RuntimeError):  # sparse, mkldnn
        return False


def leaves(value: Any, place: str, depth: int, objects: bool = True) -> Iterator[tuple[str, Tensor]]:
    """(place, tensor) of the tensors in a value: in containers and, if wanted, among the attributes of other objects."""
    if isinstance(value, Tensor):
        yield place, value
    elif depth and type(value) not in _ATOMS:
        for name, inner in members(value, objects):
            where = f"{place}[{name}]" if isinstance(name, int) else f"{place}.{name}"
            yield from leaves(inner, where, depth - 1, objects)


def members(value: Any, objects: bool) -> Any:
    """(name, member) of a container, or of any other object if wanted."""
    if isinstance(value, dict):  # transformers' ModelOutput, too
        return list(value.items())
    if isinstance(value, (list, tuple)):
        return zip(getattr(value, "_fields", None) or range(len(value)), value)  # noqa: B905
    fields = getattr(type(value), "__dataclass_fields__", None)
    if fields is not None:
        return [(name, getattr(value, name, None)) for name in fields]
    if not objects or isinstance(value, (nn.Module, type)):
        return ()
    return list(getattr(value, "__dict__", {}).items())


def frames(everything: bool = False) -> Iterator[tuple[CodeType, FrameType]]:
    """(code, frame) of the callers, innermost first; up to the innermost module call unless everything is wanted."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (everything or frame.f_code is not call_implementation):
        if not frame.f_code.co_filename.startswith(OURS):
            yield frame.f_code, frame
        frame = frame.f_back


def short(error: str) -> str:
    """Torch's words up to the first full stop, without the place in its C++ sources."""
    return " ".join(error.split(". ")[0].split("\n")[0].split()).rstrip(".")


def in_function() -> bool:
    """Whether the forward of an autograd.Function runs."""
    return any(is_function(code) for code, _ in frames())


def asked_for(frame: FrameType | None) -> bool:
    """Whether the line that dispatched a detach says `.detach()`."""
    while frame is not None and frame.f_code.co_filename.startswith((*_MACHINERY, OURS)):
        frame = frame.f_back
    return frame is not None and calls_method(frame.f_code, frame.f_lasti, "detach")


def number_of(tensor: Tensor) -> int | None:
    """Number of the autograd node that made a tensor; None for a view, whose node may be made only when it is asked for."""
    if tensor.is_inference() or tensor._is_view() or tensor.grad_fn is None:
        return None
    number: int = tensor.grad_fn._sequence_nr()
    return number
