"""
Real architectures from torchvision, timm and transformers, by the libraries' own code, with random weights, shrunk until
a training step takes well under 2 s and 1 GB on two cores.

    for architecture in architectures():      # architectures(["timm"]), architectures(name="vit")
        model, inputs, loss_of = architecture.make()
        loss_of(call(model, inputs)).backward()

Nothing is downloaded. Libraries that are not installed are left out.
"""

from __future__ import annotations

import importlib.util
import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

LIBRARIES = ("torchvision", "timm", "transformers")
Made = tuple[nn.Module, Any, Callable[[Any], torch.Tensor]]  # model, inputs, loss of the model's output


@dataclass(frozen=True)
class Architecture:
    library: str
    name: str
    build: Callable[[], Made]
    tags: tuple[str, ...] = ()

    def make(self, seed: int = 0) -> Made:
        """
        The model, in training mode, its inputs and its loss: the same bits for the same seed.

        The random streams are left in a state that depends on the seed only, so dropout is the same, too.
        """
        reseed(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model, inputs, loss_of = self.build()
        model.train()
        reseed(seed + 1)
        return model, inputs, loss_of

    def for_evaluation(self, inputs: Any) -> Any:
        """The inputs without the targets that a detector takes in training only."""
        return inputs[:1] if self.library == "torchvision" and "detection" in self.tags else inputs

    def __str__(self) -> str:
        return f"{self.library}:{self.name}"


def architectures(libraries: Sequence[str] = LIBRARIES, name: str = "") -> list[Architecture]:
    """Those of the installed libraries whose name has this part."""
    installed = [library for library in libraries if importlib.util.find_spec(library)]
    found = [each for library in installed for each in import_module(f"models.of_{library}").architectures()]
    return [each for each in found if name in each.name]


def reseed(seed: int) -> None:
    """Start torch's, numpy's and Python's random streams."""
    random.seed(seed)
    torch.manual_seed(seed)
    np.random.seed(seed)


# ---------------------------------------------------------------------------------------------------- calls and losses
def call(model: nn.Module, inputs: Any) -> Any:
    """The model's output for inputs by name or by position."""
    return model(**inputs) if isinstance(inputs, dict) else model(*inputs)


def leaves(output: Any) -> list[torch.Tensor]:
    """All tensors of an output: of dicts, lists, dataclasses, nested."""
    if isinstance(output, torch.Tensor):
        return [output]
    if isinstance(output, dict):
        inside: Any = list(output.values())
    elif isinstance(output, (list, tuple)):
        inside = output
    else:
        has_fields = hasattr(output, "__dict__") and not isinstance(output, (nn.Module, type))
        inside = list(vars(output).values()) if has_fields else []
    return [tensor for each in inside for tensor in leaves(each)]


def any_loss(output: Any) -> Any:
    """The model's own loss if it gave one, else the sum of the squared means of all its differentiable outputs."""
    loss = getattr(output, "loss", None)
    if isinstance(loss, torch.Tensor) and loss.requires_grad:
        return loss.mean()
    return sum(t.float().pow(2).mean() for t in leaves(output) if t.is_floating_point() and t.requires_grad)


def class_loss(classes: int, batch: int = 2) -> Callable[[Any], Any]:
    """Cross entropy of every output that could be class scores."""
    target = torch.arange(batch) % classes

    def loss_of(output: Any) -> Any:
        if hasattr(output, "logits") and not isinstance(output, tuple):
            output = output.logits
        scores = [o for o in leaves(output) if o.dim() == 2 and o.shape[-1] == classes]
        return sum(F.cross_entropy(o.float(), target) for o in scores)

    return loss_of


def pixel_loss(output: Any) -> Any:
    """Cross entropy of every output against class 0 everywhere."""
    return sum(F.cross_entropy(o, torch.zeros(o.shape[0], *o.shape[2:], dtype=torch.long)) for o in leaves(output))


def sum_of_losses(output: Any) -> Any:
    """The sum of the losses that a detector gives."""
    return sum(loss for loss in leaves(output) if loss.requires_grad)


# ---------------------------------------------------------------------------------------------------- inputs
def images(batch: int = 2, height: int = 64) -> torch.Tensor:
    """Square images of three channels."""
    return torch.randn(batch, 3, height, height)


def tokens(vocabulary: int = 99, batch: int = 2, length: int = 16) -> torch.Tensor:
    """Token ids that are no special ones."""
    return torch.randint(3, vocabulary, (batch, length))
