"""What modules are called: by the model that was given, or without one by each outermost module that is called."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from dispatchmon.packed.tables import Table


class Known:
    """A module that was met: its numbers in the table of modules, by name, and how often it was called in this step."""

    __slots__ = ("again", "calls", "measured", "module", "names", "numbers", "step")

    def __init__(self, module: nn.Module, names: list[str], numbers: list[int], measured: list[bool]) -> None:
        self.module = weakref.ref(module)  # an id is handed out again
        self.names, self.numbers, self.measured = names, numbers, measured
        self.step, self.calls, self.again = -1, 0, 0

    def next_call(self, step: int, again: bool) -> int:
        """Which call of this step the one that begins is; of a recomputation, which of those."""
        if self.step != step:
            self.step, self.calls, self.again = step, 0, 0
        if again:
            self.again += 1
            return self.again - 1
        self.calls += 1
        return self.calls - 1

    def name_below(self, caller: str | None) -> int:
        """Which of its names a module goes by: one registered more than once has the name below its caller."""
        if caller is None:
            return 0
        prefix = caller + "." if caller else ""
        return next((i for i, name in enumerate(self.names) if name.startswith(prefix)), 0)


class ModuleNames:
    """The modules that were met, by id, and the numbers of their names."""

    def __init__(self, model: nn.Module | None, table: Table, patterns: Sequence[str]) -> None:
        self.table = table
        self.model = weakref.ref(model) if model is not None else None
        self.patterns = tuple(patterns)
        self.filtered = "*" not in self.patterns
        self.known: dict[int, Known] = {}
        self.learned = -1  # the step in which names were looked up last
        self.numbers: dict[str, int] = {}

    def learn(self, root: nn.Module | None = None) -> None:
        """Take the names from the model, or from a module that was called with no model given."""
        model = root if root is not None else self.model() if self.model is not None else None
        if model is None:
            return
        found: dict[int, tuple[nn.Module, list[str]]] = {}
        for name, module in model.named_modules(remove_duplicate=False):
            found.setdefault(id(module), (module, []))[1].append(name)
        for key, (module, names) in found.items():
            known = self.known.get(key)
            if known is None or known.module() is not module or known.names != names:
                self.known[key] = Known(
                    module, names, [self.number(n) for n in names], [self.matches(n) for n in names]
                )

    def number(self, name: str) -> int:
        """The number of a name in the table of modules."""
        if name not in self.numbers:
            self.numbers[name] = self.table.add(name)
        return self.numbers[name]

    def matches(self, name: str) -> bool:
        """Whether `modules` asks for this name."""
        return any(fnmatchcase(name, pattern) for pattern in self.patterns)

    def of(self, module: nn.Module) -> Known | None:
        """What is known of a module; nothing of another one with its id."""
        known = self.known.get(id(module))
        return None if known is None or known.module() is not module else known

    def met(self, module: nn.Module, step: int, outermost: bool) -> Known | None:
        """What is known of a module that is new here: put into the model since, or with no model a new root."""
        self.known.pop(id(module), None)
        if self.model is not None:
            if self.learned == step:  # once a step: modules made inside forward are new in each call
                return None
            self.learned = step
            self.learn()
        elif outermost:
            self.learn(module)
        original = module._modules["_orig_mod"] if "_orig_mod" in module._modules else None  # noqa: SIM401 - ScriptModules
        if original is not None and id(module) not in self.known and id(original) in self.known:
            return self.known[id(original)]  # what torch.compile made of a module stands for it
        return self.known.get(id(module))
