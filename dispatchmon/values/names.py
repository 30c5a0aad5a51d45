"""The names of parameters, and with them of gradients and optimizer states, without keeping any of them alive."""

from __future__ import annotations

import weakref

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from dispatchmon.values.values import Values

Place = tuple["weakref.ref[nn.Module]", str]


class ParameterNames:
    """Which tensor is called what. A name is found through its module: an id is handed out again."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self.places: dict[int, tuple[weakref.ref[nn.Module], str, str]] = {}  # id -> module, key, name
        self.states: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()  # how many were named
        self.rows_before_step = 0

    def learn(self, model: nn.Module) -> None:
        """Name the parameters and buffers of a model."""
        for named in (model.named_parameters, model.named_buffers):
            for name, tensor in named(remove_duplicate=False):
                if not nn.parameter.is_lazy(tensor):
                    self.values.name(tensor, name)
        # A weak reference to the parameter itself would make `torch.utils.swap_tensors` refuse it.
        for path, module in model.named_modules():
            for key, parameter in module._parameters.items():
                place = weakref.ref(module), key, f"{path}.{key}" if path else key
                self.places.setdefault(id(parameter), place)

    def name_of(self, parameter: torch.Tensor) -> str | None:
        """The name of a parameter of the model; None for any other tensor."""
        known = self.places.get(id(parameter))
        if known is None or (module := known[0]()) is None or module._parameters.get(known[1]) is not parameter:
            return None
        return known[2]

    def before_step(self, optimizer: Optimizer) -> None:
        """An optimizer is about to step: name the gradients that it sees."""
        self.rows_before_step = len(self.values.rows)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if (name := self.name_of(parameter)) is not None:
                    # its memory may be new: `.data =`, `model.double()`, a lazy module
                    self.values.name(parameter, name)
                    if parameter.grad is not None:
                        self.values.name(parameter.grad, name + ".grad")

    def after_step(self, optimizer: Optimizer) -> None:
        """An optimizer has stepped: name the states that it made, also in the rows of this step."""
        if self.states.get(optimizer) == len(optimizer.state):
            return
        self.states[optimizer] = len(optimizer.state)
        made = []
        for parameter, state in optimizer.state.items():
            name = self.name_of(parameter) if isinstance(parameter, torch.Tensor) else None
            if name is not None and isinstance(state, dict):
                for key, value in state.items():
                    if isinstance(value, torch.Tensor):
                        self.values.name(value, f"{name}.{key}")
                        made.append(value)
        start = (
            self.rows_before_step if self.rows_before_step <= len(self.values.rows) else 0
        )  # a batch ended meanwhile
        self.values.rename_rows(made, start)


def owned_by(model: nn.Module) -> dict[str, tuple[weakref.ref[nn.Module], str]]:
    """(module, key) of the parameters and persistent buffers, by name."""
    # A weak reference to the parameter itself would make `torch.utils.swap_tensors` refuse it.
    return {
        f"{path}.{key}" if path else key: (weakref.ref(module), key)
        for path, module in model.named_modules(remove_duplicate=False)
        for key in (*module._parameters, *module._buffers)
        if key not in module._non_persistent_buffers_set
    }
