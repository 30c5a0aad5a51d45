"""What a monitor was asked to record, checked when it is made."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from dispatchmon.errors import SettingError
from dispatchmon.observing.rules import Rule
from dispatchmon.schema import PHASES, STATISTICS

StepPattern = str | Callable[[int], bool] | None


@dataclass(frozen=True)
class Settings:
    """The checked arguments of a monitor."""

    record: tuple[str, ...]
    stats: tuple[str, ...]
    steps: StepPattern
    modules: tuple[str, ...]
    module_types: tuple[str, ...]
    ops: tuple[str, ...]
    phases: tuple[str, ...]
    source: bool
    training: bool | None
    compiled: str
    on_hazard: str
    verify_values: bool
    on_nonfinite: str
    keep_last: int | None
    max_bytes: int | None
    rules: tuple[Rule, ...]
    update_bytes: int

    def wants_step(self, step: int) -> bool:
        """Whether a step is recorded."""
        if self.steps is None:
            return True
        if callable(self.steps):
            return bool(self.steps(step))
        start, stop, every = step_range(self.steps)
        return step >= start and (stop is None or step < stop) and (step - start) % every == 0

    def described(self) -> dict[str, Any]:
        """For the metadata of the trace."""
        steps = self.steps if self.steps is None or isinstance(self.steps, str) else "callable"
        return {
            "record": self.record,
            "stats": self.stats,
            "steps": steps,
            "modules": self.modules,
            "module_types": self.module_types,
            "ops": self.ops,
            "phases": self.phases,
            "training": self.training,
            "source": self.source,
            "compiled": self.compiled,
            "on_hazard": self.on_hazard,
            "verify_values": self.verify_values,
            "on_nonfinite": self.on_nonfinite,
            "keep_last": self.keep_last,
            "max_bytes": self.max_bytes,
            "rules": [str(rule) for rule in self.rules],
            "update_bytes": self.update_bytes,
        }


def checked(
    *,
    record: Iterable[str],
    stats: Iterable[str],
    steps: StepPattern,
    modules: str | Sequence[str],
    module_types: str | Sequence[str],
    rules: Iterable[Rule],
    update_bytes: int,
    ops: str | Sequence[str],
    phases: Iterable[str],
    source: bool,
    training: bool | None,
    compiled: str,
    on_hazard: str,
    verify_values: bool,
    on_nonfinite: str,
    keep_last: int | None,
    max_bytes: int | None,
    names: Sequence[str] | None,
    types: Sequence[str] | None,
) -> Settings:
    """
    The settings, or a `SettingError` that says which argument cannot be meant.

    `names` are the qualified names of the model's modules, `types` those of their classes; None without a model.
    """
    recorded = chosen("record", record, ("ops", "modules", "parameters"), empty=False)
    numbers = chosen("stats", stats, STATISTICS)
    if isinstance(steps, str):
        step_range(steps)
    elif steps is not None and not callable(steps):
        raise SettingError(f'steps is {steps!r}: give "START:STOP:EVERY", as "0:100:10", or a function of the step')
    if training not in (None, True, False):
        raise SettingError(f"training is {training!r}: give True, False or None")
    module_patterns = patterns("modules", modules)
    if names is not None:
        for pattern in module_patterns:
            if pattern != "*" and not any(fnmatchcase(name, pattern) for name in names):
                raise SettingError(f"modules: no module of the model is called {pattern!r}{near(pattern, names)}")
    type_patterns = patterns("module_types", module_types) if module_types else ()
    for pattern in type_patterns if types is not None else ():
        if not any(fnmatchcase(name, pattern) for name in types or ()):
            raise SettingError(
                f"module_types: no module of the model is a {pattern!r}{near(pattern, list(types or ()))}"
            )
    asked = checked_rules(rules)
    if asked and recorded == ("ops",):
        raise SettingError('rules are about modules and parameters: put them into record, as record=("modules",)')
    if asked and not numbers:
        raise SettingError("rules need statistics, and stats is empty")
    if verify_values and "ops" not in recorded:
        raise SettingError('verify_values is about operators: put "ops" into record')
    if isinstance(update_bytes, bool) or not isinstance(update_bytes, int) or update_bytes < 0:
        raise SettingError(f"update_bytes is {update_bytes!r}: give a number of bytes, 0 for no updates")
    return Settings(
        record=recorded,
        stats=numbers,
        steps=steps,
        modules=module_patterns,
        module_types=type_patterns,
        ops=patterns("ops", ops),
        phases=chosen("phases", phases, PHASES, empty=False),
        source=bool(source),
        training=training,
        compiled=chosen("compiled", compiled, ("keep", "eager"), empty=False)[0],
        on_hazard=chosen("on_hazard", on_hazard, ("record", "warn", "raise"), empty=False)[0],
        verify_values=bool(verify_values),
        on_nonfinite=reaction(on_nonfinite, stats),
        keep_last=at_least_one("keep_last", keep_last, "the number of recorded steps to keep"),
        max_bytes=at_least_one("max_bytes", max_bytes, "the size in bytes at which to stop"),
        rules=asked,
        update_bytes=update_bytes,
    )


def checked_rules(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """The rules, each of which was checked when it was made."""
    given = (rules,) if isinstance(rules, Rule) else tuple(rules)
    for rule in given:
        if not isinstance(rule, Rule):
            raise SettingError(f'rules: {rule!r} is no Rule; write Rule("layer1.*", "output", "norm", above=100)')
    return given


def reaction(on_nonfinite: str, stats: Iterable[str]) -> str:
    """What to do when an operator makes a NaN or Inf."""
    word = chosen("on_nonfinite", on_nonfinite, ("record", "warn", "raise"), empty=False)[0]
    if word != "record" and not tuple(stats):
        raise SettingError(f"on_nonfinite is {word!r}, but stats is empty: without statistics no NaN or Inf is seen")
    return word


def chosen(argument: str, given: Iterable[str], allowed: Sequence[str], empty: bool = True) -> tuple[str, ...]:
    """Some of the allowed words, in their order."""
    words = (given,) if isinstance(given, str) else tuple(given)
    for word in words:
        if word not in allowed:
            raise SettingError(f"{argument}: {word!r} is not known; choose from {', '.join(allowed)}")
    if not words and not empty:
        raise SettingError(f"{argument} is empty; choose from {', '.join(allowed)}")
    return tuple(word for word in allowed if word in words)


def patterns(argument: str, given: str | Sequence[str]) -> tuple[str, ...]:
    """One glob or several."""
    globs = (given,) if isinstance(given, str) else tuple(given)
    if not globs or not all(isinstance(glob, str) for glob in globs):
        raise SettingError(f'{argument} is {given!r}: give a glob, as "*.attn", or a list of globs')
    return globs


def at_least_one(argument: str, given: int | None, what: str) -> int | None:
    """A positive whole number, or None."""
    if given is not None and (isinstance(given, bool) or not isinstance(given, int) or given < 1):
        raise SettingError(f"{argument} is {given!r}: give {what}, at least 1, or None")
    return given


def near(pattern: str, names: Sequence[str]) -> str:
    """A hint at names that look alike."""
    matches = difflib.get_close_matches(pattern, names, n=3, cutoff=0.5)
    return f"; near matches: {', '.join(matches)}" if matches else ""


def step_range(pattern: str) -> tuple[int, int | None, int]:
    """(start, stop, every) of "START:STOP:EVERY"; each part may be left out."""
    parts = pattern.split(":")
    try:
        numbers = [int(part) if part.strip() else None for part in parts]
    except ValueError:
        numbers = []
    if not 2 <= len(numbers) <= 3:
        raise SettingError(f'steps is {pattern!r}: give "START:STOP:EVERY", as "0:100:10"; each may be left out')
    start, stop, every = numbers[0] or 0, numbers[1], numbers[2] if len(numbers) == 3 and numbers[2] is not None else 1
    if start < 0 or every < 1 or (stop is not None and stop <= start):
        raise SettingError(
            f"steps is {pattern!r}: it selects no step; START is at least 0, STOP above START, EVERY at least 1"
        )
    return start, stop, every
