"""
An independent witness of every operator: a dispatch mode below the monitor that copies all bytes before and after.

    with CheckingMode() as witness, DispatchMonitor(None, path):
        program()
    failures = disagreements(witness, path)

It shares no code with dispatchmon. Slow and hungry by design: for tests only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dispatchmon.schema import CLOSING_KEY

STATISTICS = ("min", "max", "mean", "std", "norm", "nan", "inf", "posinf", "zero")
TOLERANCE = 1e-6  # of mean and std relative to the largest magnitude, of norm relative to itself; the rest is exact
SMALLEST, LARGEST = 1e-160, 1e150  # the sum of squares of a std outside is no float64: it comes out as 0, or null
COMPLEX_TOLERANCE = 1e-14  # min and max of magnitudes: the last bit of a square root

# Operators whose results nobody has written yet: their bytes are whatever was there.
# ATen's LossCTC.cpp allocates the table by at::empty, and fills it no further than each sample's own lengths.
SCRATCH = {("aten::_ctc_loss", "out1"), ("aten::_ctc_loss_backward", "log_alpha")}
UNWRITTEN = frozenset(
    f"aten::{name}" for name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted",
                                 "empty_quantized", "_efficientzerotensor")
)  # fmt: skip

# Writes that no schema declares, as seen by comparing bytes: operator -> (arguments, flag that switches it on).
RUNNING = ("running_mean", "running_var")
UNDECLARED = {
    "aten::native_batch_norm": (RUNNING, "training"),
    "aten::batch_norm": (RUNNING, "training"),
    "aten::_batch_norm_impl_index": (RUNNING, "training"),
    "aten::instance_norm": (RUNNING, "use_input_stats"),
    "aten::batch_norm_update_stats": (RUNNING, None),
    "c10d::allreduce_": (("tensors",), None),
    "c10d::broadcast_": (("tensors",), None),
    "c10d::allgather_": (("output_tensors",), None),
    "c10d::_allgather_base_": (("output_tensor",), None),
    "c10d::scatter_": (("output_tensors",), None),
    "c10d::alltoall_base_": (("output",), None),
}

_NUMPY = {torch.bfloat16: None, torch.float16: np.float16, torch.float32: np.float32, torch.float64: np.float64,
          torch.int64: np.int64, torch.int32: np.int32, torch.int16: np.int16, torch.int8: np.int8, torch.uint8: np.uint8,
          torch.uint16: np.uint16, torch.uint32: np.uint32, torch.uint64: np.uint64, torch.bool: np.bool_}  # fmt: skip
_COMPLEX = {torch.complex32: np.float16, torch.complex64: np.float32, torch.complex128: np.float64}
_FLOAT8 = {
    dtype for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
    if (dtype := getattr(torch, name, None)) is not None
}  # fmt: skip


class Look(NamedTuple):
    """One tensor at one moment."""

    dtype: torch.dtype
    device: str
    shape: tuple[int, ...] | None
    stride: tuple[int, ...] | None
    offset: int | None
    content: bytes | None  # of the elements in order; None if they cannot be read
    elements: bytes | None  # of the ordinary numbers it holds, if it holds some: for a sparse tensor the stored ones
    marks: tuple[bool, bool]  # conjugated, negated
    memory: int | None  # identity of its storage


@dataclass
class Event:
    """One operator: the tensors that went in, and the same after; the results. After and results are None if it raised."""

    name: str
    schema: Any
    arguments: dict[str, Any]
    before: dict[str, Look]
    after: dict[str, Look] | None = None
    results: dict[str, Look] | None = None


class CheckingMode(TorchDispatchMode):
    """Keeps an `Event` for each operator, in order of execution."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        schema = getattr(func, "_schema", None)
        if schema is None or schema.name.startswith("profiler::"):
            return func(*args, **kwargs or {})
        arguments = {argument.name: value for argument, value in zip(schema.arguments, args, strict=False)} | (
            kwargs or {}
        )
        tensors = {path: tensor for name, value in arguments.items() for path, tensor in tensors_in(name, value)}
        event = Event(str(func), schema, {k: v for k, v in arguments.items() if isinstance(v, (bool, int, float, complex)) or not holds_tensors(schema, k)},
                      {path: look(tensor) for path, tensor in tensors.items()})  # fmt: skip
        self.events.append(event)
        result = func(*args, **kwargs or {})
        event.after = {path: look(tensor) for path, tensor in tensors.items()}
        returned = result if len(schema.returns) > 1 else (result,)
        event.results = {
            path: look(tensor)
            for i, (declared, value) in enumerate(zip(schema.returns, returned, strict=False))
            if declared.alias_info is None or not declared.alias_info.is_write
            for path, tensor in tensors_in(declared.name or f"out{i}", value)
        }
        return result


def holds_tensors(schema: Any, name: str) -> bool:
    return any(a.name == name and "Tensor" in str(a.type) for a in schema.arguments)


def tensors_in(path: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, (list, tuple)):
        for i, each in enumerate(value):
            yield from tensors_in(f"{path}[{i}]", each)


def look(tensor: Tensor) -> Look:
    """What can be said of a tensor now, as a copy."""
    shape = stride = offset = memory = content = elements = None
    if not tensor.is_nested:
        shape = tuple(tensor.shape)
    if tensor.layout == torch.strided and not tensor.is_nested:
        stride, offset = tuple(tensor.stride()), tensor.storage_offset()
        memory = tensor.untyped_storage()._cdata
        if not tensor.is_meta and type(tensor).__name__ != "FakeTensor" and not tensor._is_zerotensor():
            if tensor.is_quantized:
                content = bytes_of(tensor.int_repr())
            else:
                content = elements = bytes_of(tensor)
    elif tensor.layout == torch.sparse_coo:
        elements = bytes_of(tensor._values())
        content = bytes_of(tensor._indices()) + elements
    elif tensor.layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc):
        rows = tensor.layout in (torch.sparse_csr, torch.sparse_bsr)
        places = (
            (tensor.crow_indices(), tensor.col_indices()) if rows else (tensor.ccol_indices(), tensor.row_indices())
        )
        elements = bytes_of(tensor.values())
        content = bytes_of(places[0]) + bytes_of(places[1]) + elements
    marks = (tensor.is_conj(), tensor.is_neg()) if tensor.layout == torch.strided else (False, False)
    return Look(tensor.dtype, str(tensor.device), shape, stride, offset, content, elements, marks, memory)


def bytes_of(tensor: Tensor) -> bytes:
    dense = tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return dense.reshape(-1).view(torch.uint8).numpy().tobytes() if dense.numel() else b""


@lru_cache(maxsize=1 << 14)
def reference(dtype: torch.dtype, elements: bytes) -> dict[str, float | int | None] | None:
    """The statistics of a value in extended precision; None for a kind of number that has none."""
    if dtype in _COMPLEX:
        parts = np.frombuffer(elements, _COMPLEX[dtype]).astype(np.float64).reshape(-1, 2)
        values = np.where(np.isnan(parts).any(axis=1), np.nan, np.hypot(parts[:, 0], parts[:, 1]))
    elif dtype == torch.bfloat16:
        values = (np.frombuffer(elements, np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    elif dtype in _FLOAT8:
        values = torch.frombuffer(bytearray(elements), dtype=dtype).double().numpy() if elements else np.zeros(0)
    elif dtype in _NUMPY:
        values = np.frombuffer(elements, _NUMPY[dtype]).astype(np.float64)
    else:
        return None
    found: dict[str, float | int | None] = {
        "nan": int(np.isnan(values).sum()),
        "inf": int(np.isinf(values).sum()),
        "posinf": int((values == np.inf).sum()),
        "zero": int((values == 0).sum()),
    }
    finite = values[np.isfinite(values)]
    if not len(finite):
        return found | dict.fromkeys(("min", "max", "mean", "std", "norm"))
    wide = finite.astype(np.longdouble)
    mean = wide.mean()
    found.update(min=float(finite.min()), max=float(finite.max()), mean=float(mean),
                 std=float(np.sqrt(np.square(wide - mean).mean())), norm=float(np.sqrt(np.square(wide).sum())))  # fmt: skip
    return found


def wrong_statistics(row: dict[str, Any], seen: Look) -> str | None:
    """How the statistics of a row differ from the reference, if they do."""
    expected = None if seen.elements is None else reference(seen.dtype, seen.elements)
    if expected is None:
        given = [name for name in STATISTICS if row[name] is not None]
        return f"{given} of a value that cannot be measured" if given else None
    peak = max(abs(expected["min"] or 0), abs(expected["max"] or 0))  # type: ignore[arg-type]
    for name in STATISTICS:
        value, truth = row[name], expected[name]
        if truth is None or value is None:
            right = value is truth or (value is None and isinstance(truth, float) and beyond_float64(name, truth))
        elif name in ("mean", "std"):
            right = abs(value - truth) <= TOLERANCE * peak + SMALLEST
        elif name == "norm":
            right = abs(value - truth) <= TOLERANCE * truth
        elif name in ("min", "max") and seen.dtype in _COMPLEX:
            right = abs(value - truth) <= COMPLEX_TOLERANCE * abs(truth)
        else:
            right = value == truth
        if not right:
            return f"{name} is {value}, not {truth}"
    return None


def beyond_float64(name: str, truth: float) -> bool:
    """Whether a statistic cannot be told in float64: it is null."""
    return math.isinf(truth) or (name == "std" and truth > LARGEST)


@dataclass
class Comparison:
    """What comparing a trace with a witness found."""

    events: int = 0
    rows: int = 0
    measured: int = 0
    written: int = 0
    failures: list[tuple[int, str, str]] = field(default_factory=list)
    """(event, check, what is wrong)."""


def disagreements(witness: CheckingMode, path: Path) -> Comparison:
    """Compare every row of a trace with what the witness saw at the same event."""
    found = Comparison(events=len(witness.events))
    with pa.ipc.open_file(path) as reader:
        batches = [reader.get_batch_with_custom_metadata(i) for i in range(reader.num_record_batches)]
    closing = json.loads(batches[-1].custom_metadata[CLOSING_KEY])
    if not closing["complete"]:
        found.failures.append((-1, "complete", str(closing["reason"])))
    for reason, count in closing["skipped"].items():
        if "failed" in reason:
            found.failures.append((-1, "measured", f"{count} {reason}"))
    rows: dict[int, list[dict[str, Any]]] = {}
    for row in pa.Table.from_batches([batch for batch, _ in batches]).to_pylist():
        rows.setdefault(row["event"], []).append(row)
    found.rows = sum(map(len, rows.values()))
    values: dict[Any, bytes] = {}
    if len(rows) != len(witness.events):
        found.failures.append((-1, "events", f"{len(rows)} in the trace, {len(witness.events)} ran"))
    for number, event in enumerate(witness.events):
        for check, what in of_event(event, rows.get(number, []), values, found):
            found.failures.append((number, check, f"{event.name}: {what}"))
    return found


def of_event(
    event: Event, rows: list[dict[str, Any]], values: dict[Any, bytes], found: Comparison
) -> Iterator[tuple[str, str]]:
    """What is wrong with the rows of one event."""
    if not rows or rows[0]["op"] != event.name:
        yield "events", f"the trace has {rows[0]['op'] if rows else 'nothing'}"
        return
    yield from of_arguments(event, rows)
    written = {path for path in event.before if is_written(event, path)}
    if event.after is not None:
        changed = {path for path, before in event.before.items() if event.after[path].content != before.content}
        memory = {event.before[path].memory for path in written}
        for path in changed - written:
            if event.before[path].memory is None or event.before[path].memory not in memory:
                yield "silent write", f"{path} changed, and nothing says so"
    expected = {("input", path): seen for path, seen in event.before.items()}
    if event.after is not None and event.results is not None:
        expected |= {("output", path): event.after[path] for path in written}
        expected |= {("output", path): seen for path, seen in event.results.items()}
    shown = {(row["role"], row["arg"]): row for row in rows if row["role"] is not None}
    if len(shown) != sum(row["role"] is not None for row in rows):
        yield "rows", "a tensor has two rows"
    if missing := expected.keys() - shown.keys():
        yield "rows", f"no row for {sorted(missing)}"
    if extra := shown.keys() - expected.keys():
        yield "rows", f"rows for {sorted(extra)}"
    unwritten = event.schema.name in UNWRITTEN
    for key in expected.keys() & shown.keys():
        row, seen = shown[key], expected[key]
        role, path = key
        result = role == "output" and path not in written
        if row["written"] != (path in written and not result):
            yield "written", f"{role} {path} has written={row['written']}"
        found.written += row["written"]
        for column, truth in (("dtype", str(seen.dtype).removeprefix("torch.")), ("device", seen.device), ("offset", seen.offset),
                              ("shape", seen.shape), ("stride", seen.stride)):  # fmt: skip
            value = tuple(row[column]) if isinstance(row[column], list) else row[column]
            if value != truth:
                yield "geometry", f"{column} of {role} {path} is {value}, not {truth}"
        if (unwritten and result) or (event.schema.name, path) in SCRATCH:
            if row["numel"] and any(row[name] is not None for name in STATISTICS):
                yield "statistics", f"{role} {path}: unwritten memory was measured"
            continue
        if (wrong := wrong_statistics(row, seen)) is not None:
            yield "statistics", f"{role} {path} {seen.dtype} {seen.shape}: {wrong}"
        found.measured += row["nan"] is not None
        if row["storage"] is not None and seen.content is not None:
            identity = (row["storage"], row["version"], seen.offset, seen.shape, seen.stride, seen.dtype, seen.marks)
            if values.setdefault(identity, seen.content) != seen.content:
                yield (
                    "identity",
                    f"{role} {path}: version {row['version']} of storage {row['storage']} was another value before",
                )


def is_written(event: Event, path: str) -> bool:
    """Whether the operator writes this argument: by its schema, or by the table of those that do not say so."""
    name = path.split("[")[0]
    if any(a.name == name and a.alias_info is not None and a.alias_info.is_write for a in event.schema.arguments):
        return True
    arguments, flag = UNDECLARED.get(event.schema.name, ((), None))
    if name not in arguments:
        return False
    default = {a.name: a.default_value for a in event.schema.arguments if a.has_default_value()}
    return flag is None or bool(event.arguments.get(flag, default.get(flag)))


def of_arguments(event: Event, rows: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """The non-tensor arguments on the first row, and the word for what the operator writes."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    try:
        given = json.loads(rows[0]["arguments"], parse_constant=refuse)
    except ValueError as error:
        yield "arguments", str(error)
    else:
        defaults = {a.name: a.default_value for a in event.schema.arguments if a.has_default_value()}
        spelled_out = {name for name, value in given.items() if name in defaults and value == defaults[name]}
        if given.keys() - spelled_out != event.arguments.keys() - spelled_out:  # torch leaves defaults out, or not
            yield "arguments", f"{sorted(given)}, not {sorted(event.arguments)}"
        for name, value in event.arguments.items():
            if isinstance(value, (bool, int, str)) and name in given and given[name] != value:
                yield "arguments", f"{name} is {given[name]}, not {value}"
    declared = [a for a in event.schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    name = event.schema.name.split("::")[1]
    if declared:
        word = (
            "inplace"
            if name.endswith("_") and not name.endswith("__")
            else "out"
            if any(a.kwarg_only for a in declared)
            else "other"
        )
    else:
        word = "undeclared" if any(is_written(event, path) for path in event.before) else "none"
    if any(row["mutation"] != word for row in rows):
        yield "written", f"mutation is {rows[0]['mutation']}, not {word}"
