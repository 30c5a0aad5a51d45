"""A fixed share of torch's operator database under the monitor; `python tests/judges/operator_sweep.py` runs all of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

pytest.importorskip("expecttest", reason="torch's operator database needs it")

from operator_sweep import EXCEPTIONS, Subject, check, subjects
from recorded import needs_one_detach

# Of each dtype every so many-th operator, beginning at another one each time, so that the shares differ.
SHARE = {
    "float32": 2,
    "bfloat16": 6,
    "complex64": 6,
    "int64": 6,
    "bool": 8,
    "float64": 12,
    "float16": 12,
    "int32": 12,
    "uint8": 12,
}
SAMPLES = 3


def chosen() -> list[Subject]:
    """The share."""
    return [s for i, (dtype, every) in enumerate(SHARE.items()) for s in subjects((dtype,))[i::every]]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small tensors gain nothing from more, and two processes of two threads each would wait for one another."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.slow
@needs_one_detach
@pytest.mark.parametrize("subject", chosen(), ids=str)
def test_operator(subject: Subject):
    """The monitor changes nothing about this operator, and its trace is what an independent witness of all bytes saw."""
    report = check(subject, SAMPLES)
    assert [f"{f.program} {f.check}: {f.detail}" for f in report.failures] == []
    assert report.events > 0 or report.programs == 0


def test_exceptions_are_of_operators_that_exist():
    """An exception for an operator that torch no longer has would hide nothing and mislead readers."""
    known = {s.name for s in subjects()}
    assert {name for name, _ in EXCEPTIONS} <= known
