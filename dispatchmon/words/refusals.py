"""
Why torch refuses a write in place, from the words of its error, and what to write instead. Needs no torch.

The phrases are those of torch's sources: `autograd/VariableTypeUtils.h` and `variable.cpp` (leaves and views),
`autograd/custom_function.cpp`, `c10/core/TensorImpl.h` (inference tensors), `ATen/MemoryOverlap.cpp`,
`ATen/TensorIterator.cpp`, functorch's interpreter and batching rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

# By reason, what torch's error says then. The first that fits counts.
PHRASES = {
    "leaf view": ("a view of a leaf Variable that requires grad is being used",),
    "leaf": ("a leaf Variable that requires grad is being used",),
    "dirty leaf": ("a leaf Variable that requires grad has been used",),
    "dirty view": ("modifies inplace an input that is a view",),
    "not returned": ("marked as dirty during the forward method were not returned",),
    "stale view": ("its base or another view of its base has been modified inplace",),
    "several views": ("This view is the output of a function that returns multiple views",),
    "function view": ("This view was created inside a custom Function",),
    "no_grad view": ("A view was created in no_grad mode and is being modified",),
    "inference view": ("A view was created in inference mode and is being modified",),
    "inference": ("Inplace update to inference tensor outside InferenceMode",),
    "detached view": ("Can't detach views in-place",),
    "out": ("functions with out=... arguments don't support automatic differentiation",),
    "resized": ("cannot resize variables that require grad",),
    "overlap": ("some elements of the input tensor and the written-to tensor refer to a single memory location",),
    "expanded": ("more than one element of the written-to tensor refers to a single memory location",),
    "dtype": ("can't be cast to the desired output type", "requires the source and destination dtypes match"),
    "broadcast": ("doesn't match the broadcast shape",),
    "vmap": ("vmap: inplace arithmetic(self, *extra_args) is not possible", "vmap: aten::"),
    "captured": ("that would mutate a captured Tensor",),
    "zero tensor": ("ZeroTensors are immutable",),
    "other": ("is being modified inplace", "is being used in an in-place operation"),
}
# Refused after the kernel ran: the memory holds the new value.
AFTERWARDS = frozenset(("inference", "dirty leaf", "dirty view", "not returned"))


def refusal(error: str) -> str | None:
    """The reason that an error of torch gives for refusing a write; None if it speaks of something else."""
    return next((why for why, phrases in PHRASES.items() if any(phrase in error for phrase in phrases)), None)


def advice(details: Mapping[str, Any]) -> str:
    """What to write instead of a write that was refused; where that depends on what was meant, both."""
    what = (details.get("written") or "x").removesuffix(".data")
    instead = details.get("instead")
    statement = details.get("statement") or "the line"
    return _ADVICE.get(details.get("refused") or "other", _out_of_place)(what, instead, statement)


def _out_of_place(what: str, instead: str | None, statement: str) -> str:
    return f"write `{instead}`" if instead else f"write to a copy: `{_name(what)} = {_name(what)}.clone()` first"


def _name(what: str) -> str:
    """The tensor's own name, without index."""
    return what.split("[")[0]


def _both(what: str, instead: str | None, statement: str) -> str:
    itself = f"to edit {_name(what)} itself, put `{statement}` under `with torch.no_grad():`"
    changed = f"`{instead}`" if instead else f"a copy: `y = {_name(what)}.clone()`, and write to y"
    return f"{itself}; to compute with a changed copy, write {changed}"


def _several(what: str, instead: str | None, statement: str) -> str:
    one = f"`{instead}`" if instead else f"to `{_name(what)}.clone()`"
    return f"to change this part only, write {one}; to change the whole tensor, write to an index of it, as x[:, i]"


_ADVICE: Mapping[str, Callable[[str, str | None, str], str]] = {
    "leaf": _both,
    "leaf view": _both,
    "dirty leaf": lambda what, *_: f"give the function a copy: {_name(what)}.clone()",
    "dirty view": lambda what, *_: f"give the function a copy: {_name(what)}.clone(), or return one tensor only",
    "not returned": lambda *_: "return the input that forward() writes, or do not write it",
    "stale view": lambda *_: "take the view after its base is written, or a .clone() of it before",
    "several views": _several,
    "function view": lambda *_: "return a .clone() from the forward() of the autograd.Function",
    "no_grad view": lambda what, *_: (
        f"take the view and write to it in the same mode, both under torch.no_grad() or neither; or write to "
        f"`{_name(what)}.clone()`"
    ),
    "inference view": lambda what, *_: f"write to it under torch.inference_mode() as well, or to {_name(what)}.clone()",
    "inference": lambda what, instead, statement: (
        (f"write `{instead}`, or " if instead else f"take `{_name(what)} = {_name(what)}.clone()` first, or ")
        + f"put `{statement}` under torch.inference_mode() as well"
    ),
    "detached view": lambda what, *_: "use .detach() instead of .detach_()",
    "out": lambda what, *_: f"assign the result, `{what} = ...`, instead of out={what}; or compute it under torch.no_grad()",
    "resized": lambda what, *_: "make a new tensor of that size, or resize under torch.no_grad() what is detached",
    "overlap": lambda *_: "give the operator a .clone() of what it reads",
    "expanded": lambda what, *_: f"write to a copy of its own memory: `{_name(what)}.clone()`",
    "dtype": lambda what, instead, statement: (
        f"write `{instead}`, which gives the dtype of the result" if instead
        else f"bring both to one dtype first, as `{_name(what)} = {_name(what)}.float()`"
    ),
    "broadcast": lambda what, instead, statement: (
        f"write `{instead}`, which gives the shape of the result" if instead else "bring both to one shape first"
    ),
    "vmap": lambda what, *_: (
        f"make {_name(what)} of a tensor that is mapped, as `x.new_zeros(...)`, or build it out of place, as with torch.stack"
    ),
    "captured": lambda what, *_: f"give the function {_name(what)} as an argument, and return what it became",
    "zero tensor": _out_of_place,
}
