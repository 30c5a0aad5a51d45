"""Autograd refused to read a saved value: which write does its error speak of?"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from dispatchmon.hazards.findings import PENDING, PLAN
from dispatchmon.hazards.makers import Maker, is_copy_slices
from dispatchmon.hazards.saved_values import SavedValues
from dispatchmon.hazards.savings import MODIFIED, unpack_error
from dispatchmon.operators.effects import STILL
from dispatchmon.torch_internals import (
    ENGINE_CODE,
    NOT_NUMBERED,
    checkpoint_inputs,
    checkpoint_that_refused,
)
from dispatchmon.values.tags import WRITES

# maker, node, name, tensor and tag of a saved value that was overwritten, and torch's words when it is read
Lost = tuple[Maker, Any, str, Tensor, Any, str]


def explain(error: BaseException | None, saved: SavedValues) -> None:
    """The block ends with this error: if it is autograd's, record the overwritten values that it could have met."""
    while error is not None and MODIFIED not in str(error):
        error = error.__cause__ or error.__context__
    if error is None:
        return
    text = str(error).split(" Hint")[0]
    nodes, checkpoint = graph_of(error)
    lost = list_of_lost(saved, nodes, checkpoint, text)
    if not any(problem == text for *_, problem in lost):
        lost += lost_by_copy_slices(saved, nodes, text)
    lost.sort(key=lambda each: each[-1] != text)
    for i, each in enumerate(lost):
        # Autograd stops at the first: another one of the same words would have been refused later.
        report(saved, each, explains=each[-1] == text and i == 0)


def graph_of(error: BaseException) -> tuple[list[Any], Any]:
    """The nodes of the graph that the traceback holds, as autograd runs them, and the checkpoint that refused, or None."""
    pending: list[Any] = []
    checkpoint, traceback = None, error.__traceback__
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
    return sorted(nodes.values(), key=lambda node: -node._sequence_nr()), checkpoint


def list_of_lost(saved: SavedValues, nodes: list[Any], checkpoint: Any, text: str) -> list[Lost]:
    """What the nodes saved and autograd would not read; of a checkpoint's region the inputs."""
    found: list[Lost] = []
    for node in nodes:
        maker = None if node._sequence_nr() == NOT_NUMBERED else saved.makers.of(node)
        if maker is None:
            continue
        for name, value in saved.savings.of(node):
            if checkpoint is not None and value.unpack_hook and belongs_to(value.unpack_hook, checkpoint):
                for tensor in checkpoint_inputs(checkpoint):
                    tag = saved.written_since(tensor, maker.event)
                    if tag is not None and f"is at version {tensor._version};" in text:
                        found.insert(0, (maker, node, "checkpoint", tensor, tag, text))
                checkpoint = None
            elif not value.unpack_hook:
                tag = saved.written_since(value.data, maker.event - 1)
                problem = None if tag is None else unpack_error(node, name, value.data)
                if problem is not None:
                    found.append((maker, node, name, value.data, tag, problem))
    return found


def lost_by_copy_slices(saved: SavedValues, nodes: list[Any], text: str) -> list[Lost]:
    """A CopySlices does not show what it saved. If none of the others explains the error, it was the last node that ran."""
    found: list[Lost] = []
    for node in nodes:
        number = node._sequence_nr()
        if number == saved.copies and is_copy_slices(node) and number in saved.makers.views:
            maker, hidden = saved.makers.views[number]
            found += [(maker, node, "argument", torch.empty(0), tag, text) for tag in hidden if tag[WRITES]]
    return found


def report(saved: SavedValues, lost: Lost, explains: bool) -> None:
    """Report the first write that moved the version counter past what was saved; `x.mul_(x)` hits itself."""
    maker, node, name, tensor, tag, problem = lost
    expected = int(re.search(r"expected version (\d+)", problem)[1])  # type: ignore[index]
    for logged in tag[WRITES]:
        write, _, version = logged
        if write[PENDING][0] >= maker.event and not write[PLAN].effects & STILL and version >= expected:
            saved.report(
                maker, node, name, tensor, tag, logged, loud=True, error=problem, explains=explains or None)  # fmt: skip
            return


def belongs_to(hook: Any, checkpoint: Any) -> bool:
    """Whether an unpack hook is that of this checkpointed region."""
    return any(cell.cell_contents is checkpoint for cell in getattr(hook, "__closure__", None) or ())
