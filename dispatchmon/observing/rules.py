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

from dataclasses import dataclass

from dispatchmon.errors import SettingError
from dispatchmon.schema import MODULE_ROLES, PARAMETER_ROLES

ROLES = MODULE_ROLES + PARAMETER_ROLES
MEASURES = ("min", "max", "mean", "std", "norm", "nan", "inf", "posinf", "zero", "magnitude", "ratio")
ACTIONS = ("warn", "raise")


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
