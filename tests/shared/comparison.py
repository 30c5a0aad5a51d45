"""Running a program with and without a monitor, and telling what came out apart to the last bit."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch

from dispatchmon import DispatchMonitor


def bits(value: Any) -> Any:
    """A value as something that is equal only if every bit is."""
    if isinstance(value, torch.Tensor):
        return tensor_bits(value)
    if isinstance(value, dict):
        return {str(key): bits(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [bits(each) for each in value]
    if isinstance(value, np.ndarray):
        return value.tobytes()
    return value if isinstance(value, (str, int, bool, bytes, type(None))) else repr(value)


def tensor_bits(tensor: torch.Tensor) -> Any:
    kind = (type(tensor).__name__, str(tensor.dtype), tuple(tensor.shape), tensor.requires_grad, tensor.is_inference())
    if tensor.is_meta:
        return kind
    if tensor.is_sparse:
        tensor = tensor.detach()
        return kind, tensor.is_coalesced(), bits(tensor._indices()), bits(tensor._values())
    if tensor.layout != torch.strided:
        return kind, tensor_bits(tensor.detach().to_dense())
    if hasattr(tensor, "to_local"):  # DTensor
        return kind, tensor_bits(tensor.detach().to_local())
    plain = tensor.detach().resolve_conj().resolve_neg()
    # Under any mode autograd sums gradients out of place, and the sum has its own stride where there is one element.
    stride = [step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]
    return kind, stride, plain.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def outcome(
    build: Callable[[], Any], around: Callable[[Any], AbstractContextManager[Any]] | None = None
) -> dict[str, Any]:
    """Everything that can be told of a run: what it returned or raised, its model afterwards, the random streams."""
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)
    model, run = build()
    returned = error = None
    with nullcontext() if around is None else around(model):
        try:
            returned = run(model)
        except Exception as raised:
            error = type(raised), str(raised)
    found = {"error": error, "returned": bits(returned)}
    if isinstance(model, torch.nn.Module):
        for name, each in (*model.named_parameters(), *model.named_buffers()):
            found[name] = bits(each)
            found[f"{name}.grad"] = bits(each.grad)
            found[f"{name}._version"] = None if each.is_inference() else each._version
    found["torch's random state"] = bits(torch.get_rng_state())
    found["random's state"] = repr(random.getstate())
    found["numpy's random state"] = repr(np.random.get_state())
    return found


def monitored(path: Any, **settings: Any) -> Callable[[Any], AbstractContextManager[Any]]:
    """What `outcome` puts around a run."""
    return lambda model: DispatchMonitor(model, path, quiet=True, **settings)


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """The names of what is not the same."""
    return [name for name in one.keys() | other.keys() if one.get(name) != other.get(name)]
