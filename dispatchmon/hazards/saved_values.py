"""
Which write destroyed a value that autograd had saved for backward?

Nothing is noted in forward but the event that made each autograd node. What a node saved is read when it runs, at the first
operator that it dispatches, or when autograd raised, from the graph that the traceback still holds. A finding is a saved
value whose memory was written after it was saved. A node that runs has passed autograd's own check, so what is found then
is silent; what autograd refused is loud. Nothing here keeps a tensor, a saved tensor or a node.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dispatchmon.hazards.findings import PENDING, PLAN, Hazards, Note, Victim
from dispatchmon.memory.regions import Region, overlap, region
from dispatchmon.module_tracker import ModuleTracker
from dispatchmon.operators.effects import CLONES, READS_NO_CONTENT, STILL, UNSEEN
from dispatchmon.operators.plans import Plan, Plans
from dispatchmon.packed.records import LIVE
from dispatchmon.torch_internals import (
    ENGINE_CODE,
    NOT_NUMBERED,
    checkpoint_inputs,
    checkpoint_that_refused,
    next_sequence_number,
    shows_savings,
    without_modes,
)
from dispatchmon.values.values import OWNER, WRITES, Values
from dispatchmon.words.hazards import NOBODY

MODIFIED = "modified by an inplace operation"
REENTRANT = "CheckpointFunctionBackward"
COMPILED = "CompiledFunction"
MOST_NODES = 1 << 18
MOST_VIEWS = 1 << 14
ALWAYS = 1 << 62
_STATISTICS = ("running_mean", "running_var")
# Saved values whose content no gradient reads: their shape is what is needed ...
SHAPE_ONLY = {
    f"{kind}Backward0.self"
    for kind in (
        "AvgPool2D", "AvgPool3D", "AdaptiveAvgPool2D", "AdaptiveAvgPool3D", "AdaptiveMaxPool2D", "AdaptiveMaxPool3D",
        "MaxPool2DWithIndices", "MaxPool3DWithIndices", "FractionalMaxPool2D", "ReflectionPad1D", "ReplicationPad1D",
        "ReplicationPad2D", "Gather", "Take", "MaskedSelect", "Cummax", "Cummin")
} | {"NativeLayerNormBackward0.bias"}  # fmt: skip
# ... and those read only for the gradient of input number N.
READ_FOR_INPUT = {
    "ConvolutionBackward0.weight": 0,
    "ConvolutionBackward0.input": 1,
    "NativeLayerNormBackward0.weight": 0,
    "NativeGroupNormBackward0.weight": 0,
}
MADE = Struct("5q")  # of a node: the number after its own, and the event, operator, module and source that made it
MADE_FIELDS = 5
pack_made = MADE.pack
Write = tuple[Note, Any, int]  # who wrote, the entry of the written tensor in `Geometries`, its version counter before


class Maker(NamedTuple):
    """The operator that made a node, by numbers."""

    event: int
    operator: int
    module: int
    source: int


class SavedValues:
    """Follows autograd nodes and compares what they saved with the log of writes of each storage."""

    def __init__(self, values: Values, tracker: ModuleTracker, hazards: Hazards, plans: Plans) -> None:
        self.values, self.tracker, self.hazards = values, tracker, hazards
        self.plans = plans
        self.first = next_sequence_number()
        self.newest_write = (
            ALWAYS if values.digests is not None else -1
        )  # number of the next node when something was written last
        self.node = self.task = -1  # whose savings were read last
        self.copies = -1  # number of the CopySlices that ran last, if no other node was looked at since
        self.made = bytearray()  # packed, see MADE
        self.cloned = -1  # event of a clone that an in-place operator may have dispatched
        # CopySlices by number: its operator, and the tags of its arguments.
        self.views: dict[int, tuple[Maker, tuple[Any, ...]]] = {}
        self.names: dict[type, tuple[str, ...]] = {}
        self.unknown: dict[str, int] = {}
        values.changed_unseen = self.changed_unseen

    # ------------------------------------------------------------------------------------------------- nodes
    def resume(self) -> int:
        """Nodes made before this were not seen; the number of the first that can be."""
        self.first = next_sequence_number()
        return self.first

    def node_made(self, newest: int, number: int, event: int, plan: Plan, source: int) -> int:
        """A node was built for this operator, before it came here; `newest` is the number known so far."""
        if plan.effects & CLONES and number > newest + 1:
            self.cloned = event
        made = self.made
        if len(made) > MOST_NODES * MADE.size:
            del made[: MOST_NODES // 2 * MADE.size]
            self.first = MADE.unpack_from(made, 0)[0]
        made.extend(pack_made(number, event, plan.operator, self.tracker.module, source))
        return number

    def maker(self, node: Any) -> Maker | None:
        """The operator whose gradient this node computes, if it was seen."""
        number = node._sequence_nr()
        if is_copy_slices(node) and number in self.views:
            return self.views[number][0]
        if number < self.first:
            return None
        numbers = np.frombuffer(self.made, np.int64)[::MADE_FIELDS]
        i = int(numbers.searchsorted(number, "right"))
        del numbers  # the buffer could not grow
        if i * MADE.size >= len(self.made):
            return None
        return Maker(*MADE.unpack_from(self.made, i * MADE.size)[1:])

    def victim(self, maker: Maker) -> Victim:
        """The same in words."""
        plans = (*self.plans.values(), *self.plans.quiet.values())
        op = next((plan.name for plan in plans if plan.operator == maker.operator), "an operator")
        module = next((name for name, number in self.tracker.numbers.items() if number == maker.module), None)
        return Victim(maker.event, op, module, maker.source)

    # ------------------------------------------------------------------------------------------------- writes
    def wrote(self, note: Note, written: list[tuple[Tensor, list[Any]]], args: tuple[Any, ...]) -> None:
        """A forward operator wrote these. It may be older than the clone that it made, whose node is younger."""
        (event, _, _, number, _, source), plan, _, _ = note
        maker = Maker(event, plan.operator, self.tracker.module, source)
        if self.cloned >= 0 and (at := self.clones_before(number)) is not None:
            first, *_ = MADE.unpack_from(self.made, at)
            self.made[at:at] = pack_made(first - 1, *maker)
            self.cloned = -1
        if torch.is_grad_enabled() and any(t._is_view() for t, _ in written if not t.is_inference()):
            if len(self.views) > MOST_VIEWS:
                for old in list(self.views)[: MOST_VIEWS // 2]:
                    del self.views[old]
            tags = tuple(tag for t in tensors_in(args) if (tag := self.values.tag_of(t)) is not None)
            self.views[number] = maker, tags

    def clones_before(self, number: int) -> int | None:
        """
        Where the clones that an operator dispatched for its old values begin in `made`, if the last nodes are theirs.

        One clone for `pow_`, one for each tensor of `_foreach_pow_`, whose own nodes are all older than the first of them.
        """
        at, operator = len(self.made) - MADE.size, None
        while at >= 0:
            following, event, of, _, _ = MADE.unpack_from(self.made, at)
            if (operator is None and following != number) or operator not in (None, of):
                return None
            if event == self.cloned:
                return at
            at, operator = at - MADE.size, of
        return None

    def written_since(self, tensor: Any, event: int) -> list[Any] | None:
        """The tag of the tensor's memory, if it was written after that event."""
        if not isinstance(tensor, Tensor):
            return None
        try:
            tag: list[Any] | None = getattr(tensor.untyped_storage(), self.values.attribute, None)
        except (NotImplementedError, RuntimeError):  # sparse, mkldnn
            return None
        ours = tag is not None and tag[OWNER] == self.values.owner and tag[WRITES]
        return tag if ours and tag[WRITES][-1][0][PENDING][0] > event else None  # type: ignore[index]

    # ------------------------------------------------------------------------------------------------- a node runs
    def savings(self, node: Any) -> Iterator[tuple[str, Any]]:
        """(name, torch's SavedTensor) for each saved value. Dispatches nothing, unpacks nothing, runs no hook."""
        if not shows_savings:
            self.not_known("autograd nodes, which this version of torch does not show")
            return
        names = self.names.get(type(node))
        if names is None:
            names = self.names[type(node)] = tuple(n for n in dir(type(node)) if n.startswith("_raw_saved_"))
        for name in names:
            try:
                raw = getattr(node, name)
            except RuntimeError:  # freed by an earlier backward
                continue
            for saved in raw if type(raw) is tuple else (raw,):
                yield name.removeprefix("_raw_saved_"), saved

    def node_runs(self, task: int, key: int, node: Any, plan: Plan, pending: Any, args: tuple[Any, ...]) -> None:
        """The first operator that a node dispatches: was anything that it saved written since?"""
        number = node._sequence_nr()
        maker = self.maker(node)
        copies = is_copy_slices(node)
        self.copies = number if copies else -1
        if not copies or maker is None or number not in self.views:
            self.task, self.node = task, key
        if maker is None:
            self.not_known("autograd nodes whose operators were not recorded")
            return
        if COMPILED in type(node).__name__:
            self.not_known("compiled regions")
            return
        for name, saved in self.savings(node):
            tag = self.written_since(saved.data, maker.event)
            if tag is not None and (saved.unpack_hook or unpack_error(node, name, saved.data) is None):
                self.silent(maker, node, name, saved.data, tag)
            if self.values.digests is not None and not saved.unpack_hook:
                self.verify(maker, node, name, saved.data, plan, pending)
        if copies and number in self.views:  # it does not show what it saved: its operators take it as arguments
            hidden = self.views[number][1]
            for tensor in tensors_in(args):
                tag = self.written_since(tensor, maker.event)
                if tag is not None and any(tag is one for one in hidden):
                    self.silent(maker, node, "argument", tensor, tag)

    def changed_unseen(self, tag: list[Any], entry: Any, event: int) -> None:
        """Bytes changed with no operator that declares it: a write by nobody, which this event was the first to notice."""
        pending = event, 0, self.tracker.context, next_sequence_number(), LIVE, 0
        note = self.hazards.nobody(self.plans.unseen(0, NOBODY), pending, self.tracker.path)
        tag[WRITES] = [*(tag[WRITES] or ()), (note, entry, -1)]

    def not_known(self, whose: str) -> None:
        reason = f"savings of {whose}, whose writes cannot be judged"
        self.unknown[reason] = self.unknown.get(reason, 0) + 1

    def recomputes(self, node: Any, pending: Any, plan: Plan, args: tuple[Any, ...]) -> None:
        """An operator of a checkpointed region that runs again must read what the forward read."""
        maker = self.maker(node)
        if maker is None:
            return
        written = [args[i] for i, _, _ in plan.writes if i < len(args)]
        for tensor in () if plan.effects & READS_NO_CONTENT else tensors_in(args):
            tag = self.written_since(tensor, maker.event)
            if tag is not None and tag[WRITES][-1][0][PENDING][4] == LIVE and not any(tensor is t for t in written):
                victim = Maker(pending[0], plan.operator, self.tracker.module, pending[5])
                self.silent(victim, node, "checkpoint", tensor, tag, since=maker.event)
        if type(node).__name__ == REENTRANT and (number := node._sequence_nr()) != self.node:
            self.node = number
            for name, saved in self.savings(node):
                tag = self.written_since(saved.data, maker.event)
                if tag is not None and (saved.unpack_hook or unpack_error(node, name, saved.data) is None):
                    self.silent(maker, node, name, saved.data, tag)

    def silent(
        self, victim: Maker, node: Any, name: str, tensor: Tensor, tag: list[Any], since: int | None = None
    ) -> None:
        """Autograd let it pass: report the first write that changed what the gradient reads."""
        if not content_is_read(node, name):
            return
        since = victim.event if since is None else since
        place = region_of(tensor)
        for write in tag[WRITES]:
            note, entry, _ = write
            pending, plan, _, inside = note
            mine = pending[0] > since and inside != node._sequence_nr() and plan.moves_values
            if mine and overlap(region_of_entry(entry), place):
                self.report(victim, node, name, tensor, tag, write, loud=False)
                return

    def report(
        self, victim: Maker, node: Any, name: str, tensor: Tensor, tag: Any, write: Write, loud: bool, **details: Any
    ) -> None:
        note, entry, _ = write
        unseen = bool(note[PLAN].effects & UNSEEN)
        self.hazards.add(
            "undeclared-write" if unseen else "write-after-save", note, entry, tag, self.victim(victim), name, loud,
            quiet="error" in details, saved_as=f"{node.name()}.{name}", saved_shape=list(tensor.shape),
            checkpoint=name == "checkpoint" or None,
            overlaps=overlap(region_of_entry(entry), region_of(tensor)) if tensor.numel() else None,
            noticed=unseen or None, **details,
        )  # fmt: skip

    def verify(self, maker: Maker, node: Any, name: str, tensor: Tensor, plan: Plan, pending: Any) -> None:
        """Compare the bytes of what was saved with those that were seen last."""
        digests, values = self.values.digests, self.values
        tag = values.tag_of(tensor) if isinstance(tensor, Tensor) else None
        if tag is None or digests is None:
            return
        known = len(digests.findings)
        try:
            entry = values.entry_of(tensor)
            changed = digests.check(tag, entry[1], tensor, pending[0])[1]
        except Exception:  # no memory to look at
            return
        if changed and content_is_read(node, name):
            del digests.findings[known:]
            note = self.hazards.nobody(plan, pending, self.tracker.path)
            self.hazards.add(
                "undeclared-write",
                note,
                entry,
                tag,
                self.victim(maker),
                name,
                noticed=True,
                saved_as=f"{node.name()}.{name}",
            )

    # ------------------------------------------------------------------------------------------------- torch's error
    def explain(self, error: BaseException) -> None:
        """Autograd raised: find overwritten values in what is left of the graph, first the one that it met."""
        text, traceback = str(error).split(" Hint")[0], error.__traceback__
        pending: list[Any] = []
        checkpoint = None
        while traceback is not None:
            frame = traceback.tb_frame  # reading f_locals of the user's frames would keep their values alive
            if frame.f_code is ENGINE_CODE:
                pending += [r.grad_fn if isinstance(r, Tensor) else r.node for r in frame.f_locals["t_outputs"]]
            elif (region := checkpoint_that_refused(frame)) is not None:
                checkpoint = region
            traceback = traceback.tb_next
        nodes: dict[int, Any] = {}
        while pending:
            node = pending.pop()
            if node is not None and id(node) not in nodes:
                nodes[id(node)] = node  # kept during the walk, so that its id stays its own
                pending += [following for following, _ in node.next_functions]
        found: list[tuple[Any, ...]] = []
        for node in sorted(nodes.values(), key=lambda node: -node._sequence_nr()):  # as autograd ran them
            maker = None if node._sequence_nr() == NOT_NUMBERED else self.maker(node)
            if maker is None:
                continue
            for name, saved in self.savings(node):
                if checkpoint is not None and saved.unpack_hook and belongs_to(saved.unpack_hook, checkpoint):
                    for tensor in checkpoint_inputs(checkpoint):
                        tag = self.written_since(tensor, maker.event)
                        if tag is not None and f"is at version {tensor._version};" in text:
                            found.insert(0, (True, maker, node, "checkpoint", tensor, tag, text))
                    checkpoint = None
                elif not saved.unpack_hook:
                    tag = self.written_since(saved.data, maker.event - 1)
                    problem = None if tag is None else unpack_error(node, name, saved.data)
                    if problem is not None:
                        found.append((problem == text, maker, node, name, saved.data, tag, problem))
        if not any(entry[0] for entry in found):  # then it was a CopySlices: the last node that ran
            for node in nodes.values():
                number = node._sequence_nr()
                if number == self.copies and is_copy_slices(node) and number in self.views:
                    maker, hidden = self.views[number]
                    found += [
                        (True, maker, node, "argument", torch.empty(0), tag, text) for tag in hidden if tag[WRITES]
                    ]
        found.sort(key=lambda entry: not entry[0])
        for i, (same, maker, node, name, tensor, tag, problem) in enumerate(found):
            # Autograd stops at the first: another one of the same words would have been refused later.
            self.loud(maker, node, name, tensor, tag, problem, same and i == 0)

    def loud(self, maker: Maker, node: Any, name: str, tensor: Tensor, tag: Any, problem: str, same: bool) -> None:
        """Report the first write that moved the version counter past what was saved; `x.mul_(x)` hits itself."""
        expected = int(re.search(r"expected version (\d+)", problem)[1])  # type: ignore[index]
        for write in tag[WRITES]:
            note, _, version = write
            if note[PENDING][0] >= maker.event and not note[PLAN].effects & STILL and version >= expected:
                self.report(maker, node, name, tensor, tag, write, loud=True, error=problem, explains=same or None)
                return


def is_copy_slices(node: Any) -> bool:
    """Whether this node stands for an in-place operator on a view."""
    return type(node).__name__ == "CopySlices"


def belongs_to(hook: Any, checkpoint: Any) -> bool:
    """Whether an unpack hook is that of this checkpointed region."""
    return any(cell.cell_contents is checkpoint for cell in getattr(hook, "__closure__", None) or ())


def unpack_error(node: Any, name: str, tensor: Tensor) -> str | None:
    """What autograd says when it unpacks this value, or None. For values without hooks: unpacking would run them."""
    try:
        with without_modes():  # unpacking a result dispatches a detach
            getattr(node, "saved_tensors" if name == "tensors" and hasattr(node, "saved_tensors") else "_saved_" + name)
    except RuntimeError as error:
        if MODIFIED in str(error) and f"is at version {tensor._version};" in str(error):
            return str(error).split(" Hint")[0]
    return None


def content_is_read(node: Any, name: str) -> bool:
    """Whether the gradient that this node computes reads the content of a saved value."""
    saved_as = f"{node.name()}.{name}"
    if saved_as in SHAPE_ONLY or (name in _STATISTICS and getattr(node, "_saved_training", False)):
        return False
    return saved_as not in READ_FOR_INPUT or node.next_functions[READ_FOR_INPUT[saved_as]][0] is not None


def region_of(tensor: Tensor) -> Region:
    """The bytes that a tensor covers."""
    return region(tensor.shape, tensor.stride(), int(tensor.storage_offset()), tensor.element_size())


def region_of_entry(entry: Any) -> Region:
    """The same of an entry of `Values.geometries`."""
    shape, stride, offset, dtype = entry[3]
    return region(shape, stride, offset, dtype.itemsize)


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among values and in lists of them."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)
