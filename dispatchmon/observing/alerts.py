"""Rules while training: which rows meet one, what is warned of, and what raises."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from dispatchmon.errors import AlertError, NonFiniteError
from dispatchmon.observing.on_nonfinite import parameters_of, uses_its_gradients
from dispatchmon.observing.rules import Rule
from dispatchmon.observing.scaler import Scaler
from dispatchmon.packed import totals as r
from dispatchmon.packed.records import ROW
from dispatchmon.schema import MODULE_ROLES
from dispatchmon.torch_internals import DisableTorchFunction, kernels_only, local_part
from dispatchmon.values.values import Values
from dispatchmon.words.harmless import printable_lines

WEIGHT_OF_PAST = 0.9  # weight of the past in a running mean
SCALED_ROLES = ("grad_input", "grad_output", "raw_grad")  # what a GradScaler scales


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
    posinf: int = 0
    first: Hit | None = None  # of what did harm: what was not finite before

    def as_json(self) -> str:
        """For the `arguments` column."""
        found: dict[str, Any] = {"rule": str(self.rule), "value": sayable(self.value)}
        if self.usual is not None:
            found["running_mean"] = sayable(self.usual)
        return json.dumps(found, ensure_ascii=False)

    def message(self) -> str:
        """One sentence."""
        if self.first is not None:
            return self.first.message()
        who = f"{self.arg if self.role in MODULE_ROLES else self.role} of {self.subject or 'the model'}"
        if self.role in ("grad_input", "grad_output"):
            who = f"the gradient of {who}"
        if self.rule.nonfinite:
            held = " and ".join(f"{n} {what}" for n, what in ((self.nan, "NaN"), (self.inf, "Inf")) if n)
            return f"{who} has {held}"
        value = self.value + 0.0  # no -0
        usual = "" if self.usual is None else f", {value / self.usual:.3g} times its running mean"
        return f"{who}: {self.rule.statistic} is {value:.4g}{usual} (rule: {self.rule})"


def sayable(value: float) -> float | str:
    """JSON has no infinity."""
    return value if math.isfinite(value) else str(value)


class Borders:
    """
    `on_nonfinite` where no operator is recorded: what is not finite at the borders of modules, and whether it does harm.

    It does in a parameter, its update or its state, in a gradient that an optimizer is about to use, in the result of the
    outermost module without gradients, and in what the block leaves.
    """

    def __init__(self) -> None:
        self.scaler = Scaler()
        self.suspects: dict[str, Hit] = {}  # `nan`, `inf` -> the first of this step
        self.left = False  # a result or a gradient of this step is not finite
        self.outermost: Callable[[], bool] = lambda: False  # whether the module that returns was called from outside

    @property
    def first(self) -> Hit | None:
        """What was not finite first: a NaN, for an Inf may be a mask."""
        return self.suspects.get("nan") or self.suspects.get("inf")

    def new_step(self) -> None:
        """The step before is over, and did no harm."""
        self.suspects.clear()
        self.left = False

    def harm(self, hit: Hit) -> Hit | None:
        """Note what is not finite; if it does harm, say what was not finite first."""
        if hit.role in SCALED_ROLES and self.scaler.at_work():
            return None
        self.suspects.setdefault("nan" if hit.nan else "inf", hit)
        result = hit.role == "output" and self.outermost()
        self.left |= hit.role in SCALED_ROLES or result and hit.nan + hit.posinf > 0
        certain = hit.role in ("update", "state") or hit.nan > 0 and (
            hit.role == "value" or result and not torch.is_grad_enabled())  # fmt: skip
        return replace(hit, first=self.first) if certain else None


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
        self.borders = Borders()

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
                met = self.met(rule, totals, subject, number)
                if met is None:
                    continue
                nan, inf, posinf = int(totals[r.NAN]), int(totals[r.INF]), int(totals[r.POSINF])
                hit = Hit(rule, row, subject, role, arg, *met, nan, inf, posinf)
                harm = hit if rule is not self.watch else self.borders.harm(hit)
                if harm is not None:
                    hits.append(harm)
        return hits

    def before_optimizer(self, optimizer: Optimizer) -> None:
        """
        An optimizer is about to use gradients: are they finite?

        Raises:
            NonFiniteError: if they are not, and `on_nonfinite` asks for it.
        """
        first = self.borders.first
        if self.watch is not None and first is not None and uses_its_gradients(optimizer) and not all_finite(optimizer):
            self.announce([first])

    def at_end(self) -> None:
        """
        The block ends: what it leaves may not be finite.

        Raises:
            NonFiniteError: if it is not, and `on_nonfinite` asks for it.
        """
        if self.watch is not None and self.watch not in self.warned and self.borders.left and self.borders.first:
            self.announce([self.borders.first])

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
            share = max(1 - WEIGHT_OF_PAST, 1 / (n + 1))  # the plain mean at first
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
            if hit.rule is self.watch and self.watch in self.warned:
                continue
            if hit.rule.action == "raise":
                self.warned.add(hit.rule)
                raise (NonFiniteError if hit.rule.nonfinite else AlertError)(hit.message())
            if hit.rule not in self.warned:
                self.warned.add(hit.rule)
                warnings.warn(f"dispatchmon: {printable_lines(hit.message())}", RuntimeWarning, stacklevel=6)


def all_finite(optimizer: Optimizer) -> bool:
    """Whether all gradients are that an optimizer has; those of other kinds than dense ones are taken to be."""
    gradients = [local_part(p.grad) for p in parameters_of(optimizer) if p.grad is not None]
    with DisableTorchFunction(), kernels_only():
        return all(bool(torch.isfinite(g).all()) for g in gradients if g.layout == torch.strided)


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
        return float(totals[r.SPREAD] / math.sqrt(totals[r.COUNT]))
    return float(totals[{"min": r.MIN, "max": r.MAX, "mean": r.MEAN, "norm": r.NORM}[statistic]])
