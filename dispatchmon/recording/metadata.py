"""What a trace says about the run, known when it begins."""

from __future__ import annotations

import platform
import sys
from datetime import UTC, datetime
from typing import Any

import torch
from torch import nn

from dispatchmon.schema import FORMAT_VERSION
from dispatchmon.version import VERSION


def metadata(model: nn.Module | None, rank: int, world_size: int) -> dict[str, Any]:
    """The process, the model and the command; `assembly.py` adds what it was asked for."""
    return {
        "format": FORMAT_VERSION,
        "dispatchmon": VERSION,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "rank": rank,
        "world_size": world_size,
        "model": None if model is None else type(model).__name__,
        "modules": [] if model is None else described_modules(model),
        "parameters": [] if model is None else described_parameters(model),
        "threads": torch.get_num_threads(),
        "command": sys.argv,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def described_modules(model: nn.Module) -> list[dict[str, Any]]:
    """The modules of a model, for the metadata of the trace; every later name of a module says which was its first."""
    described, first = [], dict[int, str]()
    for name, module in model.named_modules(remove_duplicate=False):
        known = first.setdefault(id(module), name)
        described.append({"name": name, "class": type(module).__name__} | ({} if known == name else {"same_as": known}))
    return described


def described_parameters(model: nn.Module) -> list[dict[str, Any]]:
    """Its parameters; a lazy one has no shape yet."""
    lazy = nn.parameter.UninitializedParameter
    return [
        {
            "name": n,
            "shape": None if isinstance(p, lazy) else list(p.shape),
            "dtype": str(p.dtype).removeprefix("torch."),
        }
        for n, p in model.named_parameters(remove_duplicate=False)
    ]
