"""
Small programs that are run with and without a monitor.

A program is a function that returns `(model, run)`; `run(model)` does the work and returns whatever must be the same.
`PROGRAMS` maps the name of each to it and to the operators that its trace must show, so that a program cannot pass
because the path it is about was not taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

Build = Callable[[], tuple[Any, Callable[[Any], Any]]]


class Program(NamedTuple):
    build: Build
    shows: tuple[str, ...] = ()


PROGRAMS: dict[str, Program] = {}


def program(*shows: str, **variants: Any) -> Callable[[Any], Any]:
    """Register a program; each of the variants is one of its own, built with that argument."""

    def register(build: Any) -> Any:
        name = build.__name__.replace("_", " ")
        if not variants:
            PROGRAMS[name] = Program(build, shows)
        for variant, argument in variants.items():
            PROGRAMS[f"{name}, {variant.replace('_', ' ')}"] = Program(lambda a=argument: build(a), shows)
        return build

    return register


from programs import autograd, compiled, training, transforms  # noqa: E402, F401
