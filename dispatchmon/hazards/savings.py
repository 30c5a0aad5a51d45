"""What an autograd node saved, and whether its gradient reads the content of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from dispatchmon.torch_internals import shows_savings, without_modes

MODIFIED = "modified by an inplace operation"  # torch's words when it unpacks what was written since
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


class Savings:
    """Reads the saved values of nodes. Dispatches nothing, unpacks nothing, runs no hook, keeps nothing."""

    def __init__(self) -> None:
        self.names: dict[type, tuple[str, ...]] = {}
        self.unknown: dict[str, int] = {}  # how often savings could not be judged, by reason

    def of(self, node: Any) -> Iterator[tuple[str, Any]]:
        """(name, torch's SavedTensor) for each saved value."""
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

    def not_known(self, whose: str) -> None:
        """Savings that cannot be judged are counted."""
        reason = f"savings of {whose}, whose writes cannot be judged"
        self.unknown[reason] = self.unknown.get(reason, 0) + 1


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
