"""
The columns of a trace: name, type, unit, meaning of null. The single source; `docs/format.md` is made from it.

A trace is an Arrow IPC file with one row per tensor that an event sees; an event that sees no tensor has one row whose
tensor columns are null. The rows of one event stand together, and events are in order of execution.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import xxhash

FORMAT_MAJOR, FORMAT_MINOR = 1, 2
COLUMNS_MINOR = 0  # the minor version since which every column is there
CHECKSUM_MINOR = 2  # the minor version since which every batch has a checksum
FORMAT_VERSION = f"{FORMAT_MAJOR}.{FORMAT_MINOR}"
METADATA_KEY = b"dispatchmon"  # of the schema: JSON about the run, known when the trace is opened
CLOSING_KEY = b"dispatchmon.closing"  # of the last, empty batch: JSON about the run, known when the trace is closed
CHECKSUM_KEY = b"dispatchmon.checksum"  # of each batch: what its bytes add up to
CHECKSUM = b"xxh3_64:"  # before the 16 hexadecimal digits
UNCHECKED = b"to_come:"  # in its place for the moment between a batch and its checksum
DIGITS = 16
MOST_ROWS, MOST_BYTES = 1 << 20, 1 << 28  # of one batch, once it is decompressed; a reader refuses more

KINDS = ("op", "module", "parameter", "hazard", "alert")
PHASES = ("forward", "backward", "recompute", "optimizer")
MUTATIONS = ("none", "inplace", "out", "other", "undeclared")
MODULE_ROLES = ("input", "output", "grad_output", "grad_input")
PARAMETER_ROLES = ("value", "raw_grad", "grad", "update", "state")
ROLES = (*MODULE_ROLES, *PARAMETER_ROLES, "loud", "silent")
STATISTICS = ("min", "max", "mean", "std", "norm", "nan", "inf", "posinf", "zero")


def parts_folder(path: Path) -> Path:
    """Where a flight recorder keeps the batches of a trace until it is closed, each as a trace of its own."""
    return path.with_name(f".{path.name}.parts")


def checksum(data: bytes | memoryview, words: bytes, number: int, head: int | None = None) -> bytes | None:
    """
    Return the checksum of a batch in the words of the trace: XXH3 of its bytes, with the batch's number as the seed.

    Args:
        data: the bytes of the file from the end of the batch before it (for the first one, from the begin of the file)
            to its own end.
        words: what its custom metadata has under `CHECKSUM_KEY`. Where they stand in `data`, `xxh3_64:0000000000000000`
            is taken for them.
        number: of the batch in the file, from 0.
        head: among how many of the first bytes `words` stand (default all).

    Returns:
        As `xxh3_64:0123456789abcdef`; None if `words` are not there.
    """
    view = memoryview(data)
    if len(words) != len(CHECKSUM) + DIGITS or (at := bytes(view[:head]).find(words)) < 0:
        return None
    state = xxhash.xxh3_64(view[:at], seed=number)
    state.update(CHECKSUM + b"0" * DIGITS)
    state.update(view[at + len(words) :])
    return CHECKSUM + state.hexdigest().encode()


@dataclass(frozen=True)
class Column:
    """One column: its Arrow type, the unit of its numbers (or None), what it says, and what null says (or None: never null)."""

    name: str
    type: pa.DataType
    meaning: str
    null: str | None = None
    unit: str | None = None


_utf8, _i32, _i64, _f64 = pa.utf8(), pa.int32(), pa.int64(), pa.float64()
_no_tensor = "the event sees no tensor"
_unmeasured = "not measured"
_no_finite = "not measured, or no element is finite"

COLUMNS = (
    Column("event", _i64, "number of the event in this process, in order of execution, from 0"),
    Column("kind", _utf8, "`op`, `module`, `parameter`, `hazard` or `alert`"),
    Column("rank", _i32, "rank of the process in its group; 0 without one"),
    Column("step", _i32, "training step, from 0"),
    Column("micro_step", _i32, "nth outermost call of the model in this step, from 0; of a gradient of a module's input or output that of the module's call"),
    Column("phase", _utf8, "`forward` (also all code outside backward and optimizer), `backward`, `recompute` or `optimizer`"),
    Column("module", _utf8, "qualified name of the innermost running module, `\"\"` for the model itself; of a backward "
           "operator that of the forward operator whose gradient it computes", "outside every module, or unknown"),
    Column("module_call", _i32, "nth call of that module in this step, from 0", "outside every module, or unknown"),
    Column("op", _utf8, "the operator overload, as `aten.relu_.default`; of a module event the class name; of a parameter event the optimizer's "
           "class, or `backward`"),
    Column("arguments", _utf8, "JSON of the operator's non-tensor arguments by name, `{}` if there are none; `\"inf\"`, "
           "`\"-inf\"`, `\"nan\"` as strings; of an alert the rule and the value that met it; of a hazard what was found, `finding` "
           "being its kind (docs/audit.md)", "not the event's first row: counting this column counts events"),
    Column("mutation", _utf8, "what the operator writes: `none`, `inplace` (its name ends in `_`), `out` (an `out=` overload), "
           "`other` (writes, but neither), `undeclared` (writes what its schema does not say)"),
    Column("role", _utf8, "`input`, `output`, `grad_output`, `grad_input`; of a parameter `value`, `raw_grad` (as a backward pass left it), "
           "`grad` (as the optimizer sees it), `update` (what its step added) or `state`; of a hazard "
           "whether autograd notices it, `loud` or `silent`", _no_tensor),
    Column("arg", _utf8, "name in the operator's schema, `tensors[2]` inside a list, `out0`, `out1` for unnamed results; of a module the "
           "place, as `input[0]`, `kwargs.mask`, `output.logits`, also of its gradient; of an optimizer's state its key", _no_tensor),
    Column("written", pa.bool_(), "the event writes this tensor; a written argument has two rows, `input` (before) and "
           "`output` (after)"),
    Column("storage", _i64, "the memory, by a number that is unique in the process", "no tensor, or one without a storage (sparse)"),
    Column("version", _i64, "number of writes to the storage that were seen; two rows with the same storage, version, "
           "offset, shape and stride saw the same value. Where operators are not recorded no write is seen: each event has a "
           "version of its own", "no tensor, or one without a storage (sparse)"),
    Column("name", _utf8, "name of the parameter, buffer or optimizer state; `….grad` for a parameter's gradient", "the tensor has no name"),
    Column("dtype", _utf8, "as `float32`", _no_tensor),
    Column("device", _utf8, "as `cpu`, `cuda:0`", _no_tensor),
    Column("shape", pa.list_(_i64), "sizes, outermost first", "no tensor, or one whose sizes are not plain numbers (nested)", "elements"),
    Column("stride", pa.list_(_i64), "strides, outermost first", "no tensor, or one without strides (sparse)", "elements"),
    Column("offset", _i64, "of the first element in its storage", "no tensor, or one without a storage (sparse)", "elements"),
    Column("numel", _i64, "number of elements", "no tensor, or one whose sizes are not plain numbers (nested)", "elements"),
    Column("min", _f64, "smallest finite element (complex: of the magnitudes, as in the next four)", _no_finite),
    Column("max", _f64, "largest finite element", _no_finite),
    Column("mean", _f64, "mean of the finite elements", _no_finite),
    Column("std", _f64, "population standard deviation of the finite elements", _no_finite),
    Column("norm", _f64, "L2 norm of the finite elements", f"{_no_finite}, or it is no float64: beyond 1.8e308"),
    Column("nan", _i64, "how many elements are NaN", _unmeasured, "elements"),
    Column("inf", _i64, "how many are infinite, of either sign", _unmeasured, "elements"),
    Column("posinf", _i64, "how many are +Inf", _unmeasured, "elements"),
    Column("zero", _i64, "how many are zero", _unmeasured, "elements"),
    Column("digest", pa.uint64(), "of the bytes", "not asked for"),
    Column("start_ns", _i64, "host clock when the event began, since the start of the trace", None, "ns"),
    Column("duration_ns", _i64, "of the operator itself, without the monitor's work; of a module's outputs that of its forward"
           ", which began at `start_ns`", "the operator raised, or was passed on to a tensor subclass; the event is a moment", "ns"),
    Column("forward_event", _i64, "of a backward operator: the forward event whose gradient it computes; of a hazard: the event that lost "
           "something, which had saved the value or reads it again", "not backward, or unknown"),
    Column("source", _utf8, "nearest line outside torch and dispatchmon, as `train.py:31 in forward`; of a backward operator "
           "the line of its forward operator", "not asked for, or no such line"),
    Column("caller", _utf8, "of an operator in a module: the nearest line outside every installed package that led to the "
           "outermost call of the model", "outside every module, not asked for, or no such line"),
    Column("training", pa.bool_(), "whether that module was in training mode", "outside every module"),
    Column("cause_event", _i64, "of a hazard: the event that wrote, or if nobody is known to have written (mutation `undeclared`) "
           "the one that noticed, and then `forward_event` is the one that saw the value last or had saved it; of an alert: the event that met "
           "the rule", "any other kind of event"),
    Column("cells", pa.binary(), "where the non-finite elements lie: a byte whose bits 0, 1, 2 say which of the maps of NaN, "
           "+Inf, -Inf follow, each of one bit per cell, in the order of the memory (`dispatchmon/memory/cells.py`)",
           "no element is non-finite, or not measured, or too many elements"),
)  # fmt: skip

# The keys of the two JSON documents of a trace.
METADATA = {
    "format": "version of this format, as `1.2`",
    "dispatchmon": "version of dispatchmon that wrote it",
    "torch": "version of PyTorch",
    "python": "version of Python",
    "platform": "operating system and machine",
    "rank": "rank of the process in its group; 0 without one",
    "world_size": "number of processes in the group; 1 without one",
    "model": "class of the model; null if none was given",
    "modules": "`{name, class}` of each module of the model; one that is registered several times is there under each of its names, "
    "and all but the first have `same_as`, the first name (since 1.1)",
    "parameters": "`{name, shape, dtype}` of each parameter; the shape of a lazy one is null",
    "settings": "the arguments of the monitor",
    "statistics_backend": "what computed the statistics on the CPU: `native` (the C kernel), `torch` (its reductions) or `deferred` (those of another device, for tests); null without statistics",
    "threads": "torch's threads",
    "flush": "`{rows, seconds}`: a batch is written when it has so many rows or after so long, whatever is first",
    "command": "`sys.argv`",
    "started": "when the recording began, in UTC",
}
CLOSING = {
    "complete": "whether the recording ran to its planned end",
    "reason": "if not, why it did not; else null",
    "events": "number of events in the file",
    "rows": "number of rows in the file",
    "writes": "how many events wrote to a tensor",
    "undeclared_writes": "values that changed though no operator declared it (with `verify_values`)",
    "hazards": "number of the audit's findings (`hazard` rows)",
    "steps": "number of steps in the file",
    "skipped": "what is not in the file, by reason: a number for each",
    "monitor_ns": "the monitor's own time in the training loop, in nanoseconds",
    "wait_ns": "of which it waited for the disk",
    "kept_for_good": "with `keep_last`: first and last step that were kept for the first `nan` and the first `inf`; else missing",
}

SCHEMA = pa.schema([pa.field(c.name, c.type) for c in COLUMNS])
COLUMN_NAMES = tuple(c.name for c in COLUMNS)
