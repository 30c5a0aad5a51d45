"""Schemas that hide a write: every one that this build of torch has is known, and each known one still hides it."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

from dispatchmon.operators.schemas import UNDECLARED_WRITES

for _name in ("torch.distributed", "torch._inductor", "torch.distributed._functional_collectives",
              "torch._inductor.inductor_prims", "torch.distributed._symmetric_memory"):  # fmt: skip
    importlib.import_module(_name)  # each registers operators

# These end in `_` and write nothing, or nothing that a tensor shows.
HARMLESS = {
    "c10d::monitored_barrier_": "synchronizes; its tensor only names the device",
    "aten::_no_grad_embedding_renorm_": "of TorchScript's interpreter; dispatches `embedding_renorm_`, which declares its write",
}


def schemas() -> dict[str, list[Any]]:
    """Every registered operator by name, with the schemas of its overloads."""
    found: dict[str, list[Any]] = {}
    for schema in torch._C._jit_get_all_schemas():
        if any("Tensor" in str(a.type) for a in schema.arguments):
            found.setdefault(schema.name, []).append(schema)
    return found


SCHEMAS = schemas()


def declares(schema: Any, name: str | None = None) -> bool:
    """Whether a schema declares a write, of this argument if one is named."""
    return any(
        a.alias_info is not None and a.alias_info.is_write for a in schema.arguments if name is None or a.name == name
    )


def test_no_unknown_operator_that_ends_in_an_underscore_hides_its_write():
    """By torch's naming an operator that ends in `_` writes; one that neither declares it nor is known would go unseen."""
    liars = {
        schema.name
        for name, overloads in SCHEMAS.items()
        for schema in overloads
        if name.endswith("_") and not name.endswith("__") and not declares(schema)
    }
    assert liars - UNDECLARED_WRITES.keys() - HARMLESS.keys() == set()


@pytest.mark.parametrize("name", UNDECLARED_WRITES)
def test_known_liars_still_lie(name):
    """A schema that has come to declare its write should leave the table; one that torch has renamed must be found again."""
    known = UNDECLARED_WRITES[name]
    overloads = SCHEMAS.get(name)
    if overloads is None:
        pytest.skip("not in this build of torch")
    for schema in overloads:
        if schema.overload_name.endswith("out"):
            continue
        names = {a.name for a in schema.arguments}
        assert set(known.arguments) <= names
        assert known.flag is None or known.flag in names
        assert not any(declares(schema, argument) for argument in known.arguments)


def test_the_table_is_not_empty_here():
    """Most known liars exist in any build: a table of names that torch no longer has would protect from nothing."""
    assert sum(name in SCHEMAS for name in UNDECLARED_WRITES) > len(UNDECLARED_WRITES) / 2


@pytest.mark.parametrize("name", UNDECLARED_WRITES)
def test_every_liar_has_a_reason(name):
    """Each entry says why it is known."""
    assert UNDECLARED_WRITES[name].reason
