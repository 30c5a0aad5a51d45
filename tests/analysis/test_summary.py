"""
The summary of a trace: numbers worked out by hand from the rows.
"""

import math

import duckdb
import pytest
import torch
from torch import nn

from dispatchmon import DispatchMonitor
from dispatchmon.analysis.nonfinite.unwritten_rows import OVERWRITE
from dispatchmon.analysis.summary import Group, Sighting, Totals, Writes, summarize
from dispatchmon.errors import DispatchmonError, NotATraceError
from dispatchmon.reading.query import Filters, query
from dispatchmon.trace import open_trace
from trace_factory import write_trace

STATS = {"min": -1.0, "max": 2.0, "nan": 0, "inf": 0}
LINEAR = {"op": "aten.addmm.default", "module": "head", "source": "net.py:9 in forward", "duration_ns": 500}
RELU = {"op": "aten.relu_.default", "module": "", "mutation": "inplace", "duration_ns": 70}

# Five events: addmm (3 rows), relu_ (2), addmm (2), a backward copy into an `out=`, an operator without any tensor.
ROWS = [
    {**LINEAR, **STATS, "event": 0, "step": 0, "max": 41.5, "shape": [2, 3]},
    {**LINEAR, **STATS, "event": 0, "step": 0, "arguments": None, "dtype": "int64"},
    {**LINEAR, **STATS, "event": 0, "step": 0, "arguments": None, "role": "output", "arg": "out0"},
    {**RELU, **STATS, "event": 1, "step": 0, "written": True, "min": -50.25},
    {**RELU, **STATS, "event": 1, "step": 0, "written": True, "arguments": None, "role": "output", "inf": 2},
    {**LINEAR, **STATS, "event": 2, "step": 1, "nan": 3, "inf": 1, "min": None, "max": None},
    {**LINEAR, "event": 2, "step": 1, "arguments": None, "role": "output", "arg": "out0"},
    {"op": "aten.add.out", "event": 3, "step": 1, "phase": "backward", "mutation": "out", "duration_ns": None, **STATS},
    {"op": "aten.seed", "event": 4, "step": 2, "phase": "optimizer", "role": None, "arg": None, "dtype": None},
]


@pytest.fixture
def trace(tmp_path):
    """The trace of the rows above."""
    return open_trace(write_trace(tmp_path / "trace.arrow", ROWS))


def test_by_op(trace):
    """Each operator has its calls, writes, time, rows, largest magnitude, NaN and Inf."""
    assert summarize(trace).groups == (
        Group("aten.addmm.default", 2, 0, 1000, 5, 41.5, 3, 1),
        Group("aten.add.out", 1, 1, 0, 1, 2.0, 0, 0),
        Group("aten.relu_.default", 1, 1, 70, 2, 50.25, 0, 2),
        Group("aten.seed", 1, 0, 1000, 1, None, None, None),
    )


def test_totals(trace):
    """The totals cover every event."""
    assert summarize(trace).totals == Totals(
        calls=5, writes=2, time_ns=2070, rows=9, magnitude=50.25, nan=3, inf=3, steps=3, ranks=1, groups=4
    )


def test_by_module_tells_the_model_from_outside(trace):
    """The model itself has the key "", code outside every module None."""
    assert [(g.key, g.calls) for g in summarize(trace, "module").groups] == [("head", 2), (None, 2), ("", 1)]


def test_by_step_is_in_order_of_steps(tmp_path):
    """Steps are numbers and stand in their order, not in that of their calls or digits."""
    rows = [{"step": step} for step in (10, 2, 2, 9)]
    groups = summarize(open_trace(write_trace(tmp_path / "trace.arrow", rows)), "step").groups
    assert [(g.key, g.calls) for g in groups] == [(2, 2), (9, 1), (10, 1)]


def test_by_phase_and_source(trace):
    """Phases and source lines are groups too; an event without a line has the key None."""
    assert [(g.key, g.calls) for g in summarize(trace, "phase").groups] == [
        ("forward", 3),
        ("backward", 1),
        ("optimizer", 1),
    ]
    assert [(g.key, g.calls) for g in summarize(trace, "source").groups] == [(None, 3), ("net.py:9 in forward", 2)]


def test_by_dtype_counts_an_event_once_and_a_value_where_it_belongs(trace):
    """The embedding's int64 row is a row of int64, while its event counts under its first tensor."""
    groups = summarize(trace, "dtype").groups
    assert [(g.key, g.calls, g.rows) for g in groups] == [("float32", 4, 7), (None, 1, 1), ("int64", 0, 1)]


@pytest.mark.parametrize(
    ("sort", "first", "last"),
    [
        ("calls", "aten.addmm.default", "aten.seed"),
        ("writes", "aten.add.out", "aten.seed"),
        ("time", "aten.addmm.default", "aten.add.out"),
        ("magnitude", "aten.relu_.default", "aten.seed"),
        ("nan", "aten.addmm.default", "aten.seed"),
        ("inf", "aten.relu_.default", "aten.seed"),
        ("name", "aten.add.out", "aten.seed"),
    ],
)
def test_sort(trace, sort, first, last):
    """Groups come largest first, names ascending, and what was not measured last."""
    groups = summarize(trace, sort=sort).groups
    assert (groups[0].key, groups[-1].key) == (first, last)


def test_top_cuts_the_groups_but_not_the_totals(trace):
    """Of four groups the first two remain; totals and their number stay."""
    summary = summarize(trace, top=2)
    assert [g.key for g in summary.groups] == ["aten.addmm.default", "aten.add.out"]
    assert (summary.totals.calls, summary.totals.groups) == (5, 4)


def test_first_nonfinite_is_the_first_row_in_order_of_events(trace):
    """The Inf of event 1 was seen before the NaN of event 2."""
    first = summarize(trace).stands_out.first_nonfinite
    assert first == Sighting(
        event=1,
        rank=0,
        step=0,
        phase="forward",
        module="",
        op="aten.relu_.default",
        source=None,
        role="output",
        arg="self",
        name=None,
        dtype="float32",
        shape=None,
        magnitude=2.0,
        nan=0,
        inf=2,
    )


def test_largest_magnitude_may_be_a_minimum(tmp_path):
    """-50.25 is larger in magnitude than 41.5."""
    rows = [{**LINEAR, **STATS, "event": 0, "step": 0, "role": "output", "arg": "out0", "min": -50.25, "max": 41.5}]
    largest = summarize(open_trace(write_trace(tmp_path / "trace.arrow", rows))).stands_out.largest
    assert (largest.event, largest.op, largest.role, largest.magnitude) == (0, "aten.addmm.default", "output", 50.25)


def test_what_an_inplace_write_finds_is_not_the_largest(trace):
    """It is an earlier result, and counted there, or memory that nobody has written: 41.5 is the largest, not -50.25."""
    largest = summarize(trace).stands_out.largest
    assert (largest.event, largest.op, largest.role, largest.magnitude) == (0, "aten.addmm.default", "input", 41.5)


def test_shape_of_a_sighting(trace):
    """A sighting carries the shape of the value."""
    assert summarize(trace, filters=Filters(modules=("head",))).stands_out.largest.shape == (2, 3)


def test_writes_by_kind(tmp_path):
    """Writes are counted per event, by their kind."""
    kinds = ["none", "inplace", "inplace", "out", "other", "undeclared", "other", "other"]
    rows = [{"mutation": kind, "arguments": first} for kind in kinds for first in ("{}", None)]
    summary = summarize(open_trace(write_trace(tmp_path / "trace.arrow", rows)))
    assert summary.stands_out.writes == Writes(inplace=2, out=1, other=3, undeclared=1)
    assert summary.totals.writes == 7


def test_writes_agree_with_the_documented_query(trace):
    """The count is that of the query which the documentation gives for other engines."""
    with duckdb.connect() as connection:
        connection.register("rows_read", trace.scan().read_all())
        documented = "SELECT count(*) FROM rows_read WHERE arguments IS NOT NULL AND mutation <> 'none'"
        assert connection.execute(documented).fetchall() == [(2,)]
    assert summarize(trace).totals.writes == 2


def test_values_without_statistics_are_counted(trace):
    """One output has no statistics; the event without a tensor is no value."""
    out = summarize(trace).stands_out
    assert (out.tensors, out.without_statistics) == (8, 1)


@pytest.mark.parametrize(
    ("filters", "calls", "keys"),
    [
        (Filters(steps=(1, None)), 3, {"aten.addmm.default", "aten.add.out", "aten.seed"}),
        (Filters(steps=(None, 1)), 2, {"aten.addmm.default", "aten.relu_.default"}),
        (Filters(steps=(1, 2)), 2, {"aten.addmm.default", "aten.add.out"}),
        (Filters(modules=("h*",)), 2, {"aten.addmm.default"}),
        (Filters(modules=("",)), 1, {"aten.relu_.default"}),
        (Filters(modules=("*",)), 3, {"aten.addmm.default", "aten.relu_.default"}),
        (Filters(ops=("aten.add[.m]*", "*seed")), 4, {"aten.addmm.default", "aten.add.out", "aten.seed"}),
        (Filters(ops=("add",)), 0, set()),
        (Filters(phases=("backward", "optimizer")), 2, {"aten.add.out", "aten.seed"}),
        (Filters(ranks=(0,)), 5, {"aten.addmm.default", "aten.add.out", "aten.relu_.default", "aten.seed"}),
        (Filters(ranks=(1,)), 0, set()),
        (Filters(steps=(0, 1), ops=("*relu*",), modules=("head",)), 0, set()),
    ],
)
def test_filters(trace, filters, calls, keys):
    """Only rows that meet every filter count; of several globs one is enough."""
    summary = summarize(trace, filters=filters)
    assert summary.totals.calls == calls
    assert {g.key for g in summary.groups} == keys


def test_nothing_matches(trace):
    """Without a matching row there are no groups, zero totals, and nothing stands out."""
    summary = summarize(trace, filters=Filters(ops=("none",)))
    assert (summary.groups, summary.totals) == ((), Totals())
    assert (summary.stands_out.first_nonfinite, summary.stands_out.largest) == (None, None)


def test_empty_trace(tmp_path):
    """A trace without a row has a summary too."""
    assert summarize(open_trace(write_trace(tmp_path / "trace.arrow", []))).totals == Totals()


def test_operators_are_not_added_to_module_events(tmp_path):
    """Module and parameter events see the same values again, so only operators count where there are any."""
    rows = [{}, {"kind": "module", "op": "Linear"}, {"kind": "parameter"}, {"kind": "hazard"}, {"kind": "alert"}]
    summary = summarize(open_trace(write_trace(tmp_path / "trace.arrow", rows)))
    assert (summary.kind, summary.totals.calls, [g.key for g in summary.groups]) == ("op", 1, ["aten.relu.default"])


def test_trace_of_modules_alone(tmp_path):
    """A trace that holds no operators is summarized by its module events."""
    rows = [{"kind": "module", "op": "Linear", "nan": 1}, {"kind": "parameter", "nan": 7}]
    summary = summarize(open_trace(write_trace(tmp_path / "trace.arrow", rows)))
    assert (summary.kind, summary.totals.calls, summary.stands_out.first_nonfinite.op) == ("module", 1, "Linear")
    assert summary.totals.nan == 1


def test_ranks_are_added_up_and_the_earlier_step_comes_first(tmp_path):
    """Over two ranks counts add up; the first NaN is that of the earlier step, whatever its event's number."""
    for rank, (step, nan) in enumerate([(5, 1), (4, 2)]):
        rows = [{"rank": rank, "step": step, "event": 100 * rank + i, "nan": nan * (i == 3)} for i in range(4)]
        write_trace(tmp_path / f"trace.rank{rank}.arrow", rows, metadata={"rank": rank, "world_size": 2})
    trace = open_trace(tmp_path)
    summary = summarize(trace)
    assert (summary.totals.calls, summary.totals.ranks, summary.totals.nan) == (8, 2, 3)
    first = summary.stands_out.first_nonfinite
    assert (first.rank, first.step, first.event) == (1, 4, 103)
    only = summarize(trace, filters=Filters(ranks=(0,)))
    assert (only.totals.calls, only.stands_out.first_nonfinite.rank) == (4, 0)


def test_wrong_by_and_sort(trace):
    """A key that one cannot group or sort by is an error, before anything is read."""
    message = "by is one of op, module, phase, step, dtype, source, and sort one of calls, writes, time, "
    with pytest.raises(ValueError, match=message):
        summarize(trace, by="colour")
    with pytest.raises(ValueError, match=message):
        summarize(trace, sort="key; DROP TABLE trace")


def test_progress_reaches_one(trace):
    """Progress rises to 1."""
    done = []
    summarize(trace, on_progress=done.append)
    assert done == sorted(done)
    assert done[-1] == 1.0


def test_damage_met_while_reading_is_a_trace_error(tmp_path):
    """Damage in the middle of a file reaches the caller as NotATraceError, not as an error of the engine."""
    path = write_trace(
        tmp_path / "trace.arrow", [{"op": f"aten.op{i * i * 7919 % 10007}"} for i in range(3000)], batch_rows=1000
    )
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 6000] = bytes(6000)
    path.write_bytes(data)
    with pytest.raises(NotATraceError, match=r"is damaged: batch \d of 4 cannot be read: its checksum is another, .*; record it again"):
        summarize(open_trace(path))


def test_query_yields_rows_in_order_of_events(tmp_path):
    """A query without ORDER BY yields the rows as they stand in the file."""
    trace = open_trace(write_trace(tmp_path / "trace.arrow", [{"nan": i % 3} for i in range(20_000)], batch_rows=500))
    rows = [row["event"] for row in query(trace, "SELECT event FROM trace WHERE nan = 1", ["event", "nan"])]
    assert rows == list(range(1, 20_000, 3))


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT content FROM read_text('/etc/hostname')",
        "SELECT * FROM ROWS_OF_PYTHON",
        "SELECT event FROM trace WHERE event IN (SELECT size FROM glob('/*'))",
    ],
)
def test_query_reaches_nothing_but_the_rows(trace, sql):
    """Neither files nor Python variables can be read from within a query."""
    ROWS_OF_PYTHON = trace.scan().read_all()  # noqa: F841
    with pytest.raises(DispatchmonError):
        list(query(trace, sql, ["event"]))


def test_query_error_is_one_line(trace):
    """What is wrong with a statement is said in one line."""
    with pytest.raises(DispatchmonError) as met:
        list(query(trace, "SELECT event FROM trace WHERE nam > 0", ["event"]))
    assert "\n" not in str(met.value)
    assert "nam" in str(met.value)


def test_magnitude_keeps_every_bit(tmp_path):
    """A magnitude is the recorded number, not a rounded one."""
    value = math.nextafter(1 / 3, 1)
    summary = summarize(open_trace(write_trace(tmp_path / "trace.arrow", [{"min": -value, "max": 0.1}])))
    assert (summary.totals.magnitude, summary.stands_out.largest.magnitude) == (value, value)


def test_what_an_operator_overwrites_unread_is_none_of_its_values(tmp_path):
    """Fresh memory, which `bernoulli_` and `out=` fill, may hold anything; `add_` reads what it overwrites."""
    garbage = {"role": "input", "written": True, "min": 0.0, "max": 1e30, "nan": 5, "inf": 1}
    made = {"role": "output", "written": True, "min": 0.0, "max": 1.0, "nan": 0, "inf": 0, "event": 0}
    operators = {"aten.bernoulli_.float": "inplace", "aten.mm.out": "out", "aten.add_.Tensor": "inplace"}
    rows = [
        {"event": event, "op": op, "mutation": mutation} | values | {"event": event}
        for event, (op, mutation) in enumerate(operators.items())
        for values in (garbage, made)
    ]
    groups = {g.key: (g.magnitude, g.nan, g.inf) for g in summarize(open_trace(write_trace(tmp_path / "t.arrow", rows))).groups}
    assert groups["aten.bernoulli_.float"] == groups["aten.mm.out"] == (1.0, 0, 0)
    assert groups["aten.add_.Tensor"] == (1e30, 5, 1)


def test_the_operators_that_overwrite_unread_are_those_of_the_audit():
    """The analysis needs no torch, so it has the names once more."""
    effects = pytest.importorskip("dispatchmon.operators.effects")
    assert {f"aten::{name}" for name in OVERWRITE} == effects.BY_NAME[effects.KEEPS_NOTHING]


@pytest.fixture
def filled():
    """Unwritten memory is full of NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def recorded(program, path):
    """The summary of what a program did."""
    with DispatchMonitor(None, path, quiet=True):
        program()
    return open_trace(path).summarize().stands_out, open_trace(path).summarize().totals


def in_pieces():
    """A buffer that is filled row by row, seen in part through views, copied, and joined before it is full."""
    buffer = torch.empty(3, 4)
    for row in range(2):
        buffer[row] = float(row)
        buffer.view(12)[: 4 * (row + 1)] + 1
    buffer.clone()
    torch.cat([buffer, torch.ones(1, 4)])
    buffer.to(torch.float16)
    return buffer[:2].sum()


@pytest.mark.usefixtures("filled")
def test_unwritten_memory_is_no_number(tmp_path):
    """Neither NaN nor magnitude of it is shown, through whatever view it is seen: 4 times 1 is the largest."""
    out, totals = recorded(in_pieces, tmp_path / "t.arrow")
    assert out.first_nonfinite is None
    assert (totals.nan, totals.inf) == (0, 0)
    assert (out.largest.op, out.largest.magnitude) == ("aten.sum.default", 4.0)


@pytest.mark.usefixtures("filled")
def test_what_is_made_of_unwritten_memory_is_shown(tmp_path):
    """An operator calculated with it: its result is a value of the program's."""
    out, _ = recorded(lambda: torch.empty(3).mul(2), tmp_path / "t.arrow")
    assert (out.first_nonfinite.op, out.first_nonfinite.role) == ("aten.mul.Tensor", "output")


@pytest.mark.usefixtures("filled")
def test_what_is_written_into_a_buffer_is_shown(tmp_path):
    """A real NaN in the same memory is seen where it is written."""

    def program():
        buffer = torch.empty(2, 2)
        buffer[0] = torch.tensor([1.0, torch.nan])
        return buffer[0].clone()

    out, totals = recorded(program, tmp_path / "t.arrow")
    assert (out.first_nonfinite.op, out.first_nonfinite.nan) == ("aten.lift_fresh.default", 1)
    assert totals.nan == 2 + 2 + 1 + 2  # into and out of lift_fresh, copy_ and clone, and out of the view of the row


def test_memory_that_a_tensor_is_bound_to_is_no_number(tmp_path):
    """`copy.deepcopy` binds a tensor to the bytes of a storage that nobody has filled yet: 255 would be the largest."""
    x = torch.ones(64)
    bytes_of = torch.UntypedStorage(64).fill_(255)
    with DispatchMonitor(None, tmp_path / "t.arrow", quiet=True):
        torch.empty(0, dtype=torch.uint8).set_(bytes_of)
        x.add(1)
    summary = open_trace(tmp_path / "t.arrow").summarize()
    assert {group.key: group.magnitude for group in summary.groups}["aten.set_.source_Storage"] is None
    assert summary.totals.magnitude == 2


MASKS = {
    "masked_fill": lambda: torch.zeros(2, 2).masked_fill(torch.eye(2, dtype=torch.bool), -math.inf),
    "full": lambda: torch.full((2,), -math.inf),
    "tensor": lambda: torch.tensor(-math.inf),
    "log of tril": lambda: torch.log(torch.tril(torch.ones(3, 3))),
    "log of a comparison": lambda: (torch.arange(4) > 1).float().log(),
}


@pytest.mark.parametrize("name", MASKS)
def test_what_was_filled_in_is_said_to_be(name, tmp_path):
    """In the words of `nonfinite`, which knows the same to be deliberate."""
    out, _ = recorded(MASKS[name], tmp_path / "t.arrow")
    assert out.first_nonfinite.deliberate
    assert "filled in on purpose" in " ".join(open_trace(tmp_path / "t.arrow").summarize().closing())


def test_a_logarithm_of_what_was_calculated_is_not_deliberate(tmp_path):
    """A saturated probability is 0 as well."""
    out, _ = recorded(lambda: torch.tensor([-200.0, 200.0]).sigmoid().log(), tmp_path / "t.arrow")
    assert not out.first_nonfinite.deliberate


def test_of_modules_alone_no_command_is_named_that_would_find_nothing(tmp_path):
    """The origin of a NaN is among operators."""
    model = nn.Linear(1, 1)
    with DispatchMonitor(model, tmp_path / "t.arrow", record=("modules",), quiet=True):
        model(torch.tensor([[math.nan]]))
    said = " ".join(open_trace(tmp_path / "t.arrow").summarize().closing())
    assert "not necessarily where it was made: that only operators show." in said
    assert "dispatchmon nonfinite" not in said
