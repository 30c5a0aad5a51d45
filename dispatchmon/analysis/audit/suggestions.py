"""What to write instead of a hazard, where something is safe to say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dispatchmon.words.refusals import advice

_BINARY = {"add_": "+", "sub_": "-", "mul_": "*", "div_": "/", "pow_": "**"}
# Modules of torch.nn that take `inplace`.
_INPLACE = frozenset(
    "AlphaDropout CELU Dropout Dropout1d Dropout2d Dropout3d ELU FeatureAlphaDropout Hardsigmoid Hardswish Hardtanh "
    "LeakyReLU Mish RReLU ReLU ReLU6 SELU SiLU Threshold".split())  # fmt: skip


def suggestion(
    kind: str, *, op: str, module: str | None, phase: str, details: Mapping[str, Any], classes: Mapping[str, str]
) -> str | None:
    """One suggestion, or None; `classes` are those of the model's modules by name."""
    short = op.split(".")[1] if op.startswith("aten.") else op
    if kind == "write-after-save":
        if details.get("checkpoint"):
            return "run the backward pass before the parameter is written, or outside the checkpoint"
        if phase == "optimizer":
            return "run every backward pass that needs the old parameters before this optimizer.step()"
        return out_of_place(short, module, classes, details) or "write to a .clone() of the tensor"
    if kind == "input-overwritten":
        return out_of_place(short, module, classes, details) or "write to a .clone() of the argument"
    if kind == "alias-overwritten":
        return "keep a copy: .detach().clone(), or copy.deepcopy(model.state_dict())"
    if kind == "overlapping-write":
        return "give the operator a .clone() of what it reads, or another tensor as out="
    if kind == "blocked-write":
        return advice(details)
    if kind == "parameter-write":
        return "write to a .clone() of what was read from the parameter"
    if kind == "undeclared-write" and not details.get("known"):
        return "declare the write: mutates_args=(...) of the custom operator, or write to a copy"
    return None


def out_of_place(
    short: str, module: str | None, classes: Mapping[str, str], details: Mapping[str, Any]
) -> str | None:
    """How to say the operator without writing."""
    if (kind := classes.get(module or "")) in _INPLACE:
        return f"set inplace=False in {module or 'the model'} ({kind})"
    if instead := details.get("instead"):
        return f"write `{instead}`, which leaves the old value alone"
    if short in _BINARY:
        return f"write x = x {_BINARY[short]} y instead of x {_BINARY[short]}= y"
    if short.endswith("_") and not short.endswith("__") and short not in ("copy_", "fill_", "index_put_", "zero_"):
        return f"use {short.rstrip('_')} instead of {short}"
    return None
