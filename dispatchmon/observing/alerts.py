"""
Rules that are checked while training: what is above, below, non-finite, or jumps.

    DispatchMonitor(model, record=("modules", "parameters"), rules=[
        Rule("layer4.*", "grad_output", "norm", above=1e3),
        Rule("*.weight", "update", "ratio", above=0.1),
        Rule("*", "output", nonfinite=True, action="raise"),
    ])

A hit is a row of kind `alert` in the trace, one warning per rule, and an exception if the rule asks for it.
"""

from __future__ import annotations

import gc
import json
import math
import warnings
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch

from dispatchmon.errors import AlertError, NonFiniteError, SettingError
from dispatchmon.packed.records import ROW
from dispatchmon.schema import MODULE_ROLES, PARAMETER_ROLES
from dispatchmon.statistics import reductions as r
from dispatchmon.values.values import Values

ROLES = MODULE_ROLES + PARAMETER_ROLES
MEASURES = ("min", "max", "mean", "std", "norm", "nan", "inf", "posinf", "zero", "magnitude", "ratio")
MEMORY = 0.9  # weight of the past in a running mean
ACTIONS = ("warn", "raise")
SCALED_ROLES = ("grad_input", "grad_output", "raw_grad")  # what a GradScaler scales


@dataclass(frozen=True)
class Rule:
    """
    One condition on the numbers of modules or parameters.

    Args:
        target: glob of the qualified name of a module, or of the name of a parameter.
        role: `input`, `output`, `grad_input`, `grad_output` of a module; `value`, `grad`, `raw_grad`, `update`, `state` of
            a parameter; None for all of them.
        statistic: one of the trace's; or `magnitude`, the largest absolute value; or `ratio`, of an update: its norm over
            that of the value before it. An infinite element counts here: with a +Inf in it the `max` is infinite.
        above: the statistic is larger than this.
        below: the statistic is smaller than this.
        nonfinite: there is a NaN or an Inf.
        jump: the statistic's absolute value is larger than this many times its running mean (exponential, weight of the
            past 0.9) for the same tensor.
        after: how many values a running mean needs before it can be jumped over.
        action: `"warn"`, or `"raise"` for an exception at the place.

    Raises:
        SettingError: the rule cannot be meant.
    """

    target: str = "*"
    role: str | None = None
    statistic: str = "norm"
    above: float | None = None
    below: float | None = None
    nonfinite: bool = False
    jump: float | None = None
    after: int = 10
    action: str = "warn"

    def __post_init__(self) -> None:
        given = [c for c in ("above", "below", "jump") if getattr(self, c) is not None] + ["nonfinite"] * self.nonfinite
        if len(given) != 1:
            named = ", ".join(given) or "none"
            raise SettingError(f"a rule has one condition of above, below, nonfinite, jump; {named} was given")
        if self.role is not None and self.role not in ROLES:
            raise SettingError(f"a rule's role is {self.role!r}; choose from {', '.join(ROLES)}")
        if self.statistic not in MEASURES:
            raise SettingError(f"a rule's statistic is {self.statistic!r}; choose from {', '.join(MEASURES)}")
        if self.statistic == "ratio" and self.role != "update":
            raise SettingError('only an update has a ratio: give the rule role="update"')
        if self.action not in ACTIONS:
            raise SettingError(f"a rule's action is {self.action!r}; choose from {', '.join(ACTIONS)}")
        if self.jump is not None and self.jump <= 1:
            raise SettingError(f"a rule's jump is {self.jump!r}: give how many times the running mean, above 1")

    def __str__(self) -> str:
        subject = f"{self.target or '(model)'} {self.role or 'any role'}"
        if self.nonfinite:
            return f"{subject} is non-finite"
        if self.jump is not None:
            return f"{subject} {self.statistic} jumps above {self.jump:g} times its running mean"
        condition = f"above {self.above:g}" if self.above is not None else f"below {self.below:g}"
        return f"{subject} {self.statistic} {condition}"


@dataclass(frozen=True)
class Hit:
    """A rule that was met: by which row, of what, with which number."""

    rule: Rule
    row: bytes
    subject: str | None
    role: str
    arg: str
    value: float
    usual: float | None = None  # the running mean, of a jump
    nan: int = 0
    inf: int = 0

    def as_json(self) -> str:
        """For the `arguments` column."""
        found: dict[str, Any] = {"rule": str(self.rule), "value": sayable(self.value)}
        if self.usual is not None:
            found["running_mean"] = sayable(self.usual)
        return json.dumps(found, ensure_ascii=False)

    def message(self) -> str:
        """One sentence."""
        who = f"{self.arg if self.role in MODULE_ROLES else self.role} of {self.subject or 'the model'}"
        if self.role in ("grad_input", "grad_output"):
            who = f"the gradient of {who}"
        if self.rule.nonfinite:
            held = " and ".join(f"{n} {what}" for n, what in ((self.nan, "NaN"), (self.inf, "Inf")) if n)
            return f"{who} has {held}"
        usual = "" if self.usual is None else f", {self.value / self.usual:.3g} times its running mean"
        return f"{who}: {self.rule.statistic} is {self.value:.4g}{usual} (rule: {self.rule})"


def sayable(value: float) -> float | str:
    """JSON has no infinity."""
    return value if math.isfinite(value) else str(value)


class Alerts:
    """The rules of one recording, and what they remember."""

    def __init__(self, rules: tuple[Rule, ...], on_nonfinite: str = "record") -> None:
        self.rules = rules
        self.watch = None if on_nonfinite == "record" else Rule(nonfinite=True, action=on_nonfinite)
        self.arguments: dict[int, tuple[str, str]] = {}
        self.matching: dict[tuple[str | None, str], tuple[Rule, ...]] = {}
        self.means: dict[tuple[Rule, str | None, int], tuple[float, int]] = {}
        self.warned: set[Rule] = set()
        self.ratio: float | None = None  # of the update that is being seen
        self.scaled: bool | None = None

    def learn_argument(self, number: int, role: str, arg: str) -> None:
        """What a number in the rows means."""
        self.arguments[number] = role, arg

    def wants(self, subject: str | None, role: str) -> tuple[Rule, ...]:
        """The rules about one role of one module or parameter."""
        key = subject, role
        found = self.matching.get(key)
        if found is None:
            found = tuple(
                rule for rule in self.rules if rule.role in (None, role) and fnmatchcase(subject or "", rule.target)
            )
            self.matching[key] = found
        return found

    def check(self, subject: str | None, values: Values, first: int) -> list[Hit]:
        """The rules that the rows since `first` meet."""
        hits: list[Hit] = []
        watched = (self.watch,) if self.watch is not None else ()
        for at in range(first, len(values.rows), ROW.size):
            row = bytes(values.rows[at : at + ROW.size])
            _, number, _, _, _, slot = ROW.unpack(row)
            if slot < 0 or number not in self.arguments or values.statistics is None:
                continue
            role, arg = self.arguments[number]
            for rule in (*self.wants(subject, role), *watched):
                totals = values.statistics.at(slot)
                hit = self.met(rule, totals, subject, number)
                if hit is not None and rule is self.watch and role in SCALED_ROLES and self.a_scaler_is_at_work():
                    continue
                if hit is not None:
                    nan, inf = int(totals[r.NAN]), int(totals[r.INF])
                    hits.append(Hit(rule, row, subject, role, arg, *hit, nan, inf))
        return hits

    def a_scaler_is_at_work(self) -> bool:
        """Whether a GradScaler lives: then a gradient that overflows is no accident. Looked up once."""
        if self.scaled is None:
            kind = torch.amp.GradScaler
            self.scaled = any(issubclass(type(each), kind) and each.is_enabled() for each in gc.get_objects())
        return self.scaled

    def met(self, rule: Rule, totals: Any, subject: str | None, number: int) -> tuple[float, float | None] | None:
        """(value, running mean) if these totals meet the rule."""
        if rule.nonfinite:
            bad = float(totals[r.NAN] + totals[r.INF])
            return (bad, None) if bad else None
        value = self.ratio if rule.statistic == "ratio" else measure(rule.statistic, totals)
        if value is None:
            return None
        if rule.above is not None:
            return (value, None) if value > rule.above else None
        if rule.below is not None:
            return (value, None) if value < rule.below else None
        key = rule, subject, number
        mean, n = self.means.get(key, (0.0, 0))
        if math.isfinite(value):
            share = max(1 - MEMORY, 1 / (n + 1))  # the plain mean at first
            self.means[key] = mean + share * (abs(value) - mean), n + 1
        if n >= rule.after and mean > 0 and abs(value) > (rule.jump or 0) * mean:
            return value, mean
        return None

    def announce(self, hits: list[Hit]) -> None:
        """
        Warn once per rule, and raise if one of the rules asks for it.

        Raises:
            NonFiniteError: of a rule about non-finite values.
            AlertError: of any other.
        """
        for hit in hits:
            if hit.rule.action == "raise":
                raise (NonFiniteError if hit.rule.nonfinite else AlertError)(hit.message())
            if hit.rule not in self.warned:
                self.warned.add(hit.rule)
                warnings.warn(f"dispatchmon: {hit.message()}", RuntimeWarning, stacklevel=6)


def measure(statistic: str, totals: Any) -> float | None:
    """A statistic as a rule sees it: infinite elements count; None if there is no number."""
    nan, inf, posinf = totals[r.NAN], totals[r.INF], totals[r.POSINF]
    counts = {"nan": nan, "inf": inf, "posinf": posinf, "zero": totals[r.ZERO]}
    if statistic in counts:
        return float(counts[statistic])
    if inf and statistic in ("magnitude", "norm"):
        return math.inf
    if posinf and statistic == "max":
        return math.inf
    if inf > posinf and statistic == "min":
        return -math.inf
    if not totals[r.COUNT]:
        return None
    if statistic == "magnitude":
        return float(max(abs(totals[r.MIN]), abs(totals[r.MAX])))
    if statistic == "std":
        return math.sqrt(totals[r.M2] / totals[r.COUNT])
    return float(totals[{"min": r.MIN, "max": r.MAX, "mean": r.MEAN, "norm": r.NORM}[statistic]])
