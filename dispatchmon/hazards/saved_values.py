"""
Which write destroyed a value that autograd had saved for backward?

Nothing is noted in forward but which operator made each autograd node (`makers.py`). What a node saved is read when it runs,
at the first operator that it dispatches (`savings.py`), or when autograd raised, from the graph that the traceback still
holds (`refused_reads.py`). A finding is a saved value whose memory was written after it was saved. A node that runs has
passed autograd's own check, so what is found then is silent; what autograd refused is loud. Nothing here keeps a tensor, a
saved tensor or a node.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from dispatchmon.hazards.findings import PENDING, PLAN, Hazards, Write
from dispatchmon.hazards.makers import ALWAYS, Maker, Makers, is_copy_slices
from dispatchmon.hazards.savings import Savings, content_is_read, unpack_error
from dispatchmon.memory.regions import overlap
from dispatchmon.module_tracker import ModuleTracker
from dispatchmon.operators.effects import READS_NO_CONTENT, UNSEEN
from dispatchmon.operators.operands import tensors_in
from dispatchmon.operators.plan import Plan
from dispatchmon.packed.records import LIVE
from dispatchmon.torch_internals import next_sequence_number
from dispatchmon.values.geometries import region_of, region_of_entry
from dispatchmon.values.tags import OWNER, WRITES
from dispatchmon.values.values import Values
from dispatchmon.words.hazards import NOBODY

REENTRANT = "CheckpointFunctionBackward"
COMPILED = "CompiledFunction"
Logged = tuple[
    Write, Any, int
]  # who wrote, the entry of the written tensor in `Geometries`, its version counter before


class SavedValues:
    """Compares what autograd nodes saved with the log of writes of each storage."""

    def __init__(self, values: Values, tracker: ModuleTracker, hazards: Hazards, makers: Makers) -> None:
        self.values, self.tracker, self.hazards, self.makers = values, tracker, hazards, makers
        self.savings = Savings()
        # number of the next node when something was written last: older nodes are looked at when they run
        self.newest_write = ALWAYS if values.digests is not None else -1
        self.node = self.task = -1  # whose savings were read last
        self.copies = -1  # number of the CopySlices that ran last, if no other node was looked at since
        values.changed_unseen = self.changed_unseen

    def wrote(self, number: int) -> None:
        """Something is written while the next node has this number; below 0: a number that says nothing here."""
        if number > self.newest_write or number < 0:
            self.newest_write = number if number >= 0 else ALWAYS

    def wrote_in_backward(self, node: Any) -> None:
        """The user's code wrote under this node: if that was a hook, the node has yet to read what it saved."""
        if not hasattr(type(node), "_forward_cls"):  # the backward of an autograd.Function may use up its own values
            self.node = -1

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

    def node_runs(self, task: int, key: int, node: Any, plan: Plan, pending: Any, args: tuple[Any, ...]) -> None:
        """The first operator that a node dispatches: was anything that it saved written since?"""
        number = node._sequence_nr()
        maker = self.makers.of(node)
        copies = is_copy_slices(node)
        self.copies = number if copies else -1
        if not copies or maker is None or number not in self.makers.views:
            self.task, self.node = task, key
        if maker is None:
            self.savings.not_known("autograd nodes whose operators were not recorded")
            return
        if COMPILED in type(node).__name__:
            self.savings.not_known("compiled regions")
            return
        for name, saved in self.savings.of(node):
            tag = self.written_since(saved.data, maker.event)
            if tag is not None and (saved.unpack_hook or unpack_error(node, name, saved.data) is None):
                self.silent(maker, node, name, saved.data, tag)
            if self.values.digests is not None and not saved.unpack_hook:
                self.verify(maker, node, name, saved.data, plan, pending)
        if copies and number in self.makers.views:  # it does not show what it saved: its operators take it as arguments
            hidden = self.makers.views[number][1]
            for tensor in tensors_in(args):
                tag = self.written_since(tensor, maker.event)
                if tag is not None and any(tag is one for one in hidden):
                    self.silent(maker, node, "argument", tensor, tag)

    def recomputes(self, node: Any, pending: Any, plan: Plan, args: tuple[Any, ...]) -> None:
        """An operator of a checkpointed region that runs again must read what the forward read."""
        maker = self.makers.of(node)
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
            for name, saved in self.savings.of(node):
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
        for logged in tag[WRITES]:
            write, entry, _ = logged
            pending, plan, _, inside = write
            mine = pending[0] > since and inside != node._sequence_nr() and plan.moves_values
            if mine and overlap(region_of_entry(entry), place):
                self.report(victim, node, name, tensor, tag, logged, loud=False)
                return

    def report(
        self, victim: Maker, node: Any, name: str, tensor: Tensor, tag: Any, logged: Logged, loud: bool, **details: Any
    ) -> None:
        write, entry, _ = logged
        unseen = bool(write[PLAN].effects & UNSEEN)
        self.hazards.add(
            "undeclared-write" if unseen else "write-after-save", write, entry, tag,
            self.makers.victim(victim, None if name == "checkpoint" else node), name, loud,
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
            write = self.hazards.nobody(plan, pending, self.tracker.path)
            self.hazards.add(
                "undeclared-write",
                write,
                entry,
                tag,
                self.makers.victim(maker, node),
                name,
                noticed=True,
                saved_as=f"{node.name()}.{name}",
            )

    def changed_unseen(self, tag: list[Any], entry: Any, event: int) -> None:
        """Bytes changed with no operator that declares it: a write by nobody, which this event was the first to notice."""
        pending = event, 0, self.tracker.contexts.current, next_sequence_number(), LIVE, 0
        write = self.hazards.nobody(self.makers.plans.unseen(0, NOBODY), pending, self.tracker.path)
        tag[WRITES] = [*(tag[WRITES] or ()), (write, entry, -1)]
