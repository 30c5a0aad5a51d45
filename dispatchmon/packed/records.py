"""
The packed records of the hot path, as the mode appends them and the sink reads them.

One `bytearray.extend` is atomic under the interpreter lock, leaves no Python integer behind, and numpy reads the result
without a loop.
"""

from __future__ import annotations

from struct import Struct

EVENT = Struct("9q")  # event, operator, arguments, context, number, node, source, start, duration
ROW = Struct("6q")  # event, argument, geometry, value, label, slot
CONTEXT = Struct("7q")  # module, call, step, micro step, phase, caller, training
POSITION = Struct("2q")  # autograd number, context: nodes from that number on were made there

EVENT_FIELDS, ROW_FIELDS, CONTEXT_FIELDS, POSITION_FIELDS = 9, 6, 7, 2

Pending = tuple[int, int, int, int, int, int]
"""An event before it is complete: event, arguments, context, number, node, source."""

# Phases, by number: the order of schema.PHASES.
FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER = range(4)

# The node column. At least 0: the autograd number of the node that runs, which leads to its forward operator.
LIVE = -1  # outside backward
CALLBACK = -2  # in backward, but no node runs: a callback of the engine
ACCUMULATE = -3  # an AccumulateGrad node runs: ACCUMULATE - label of the parameter
RECOMPUTED = -(1 << 40)  # a checkpoint's region runs again: RECOMPUTED - number of the node
FOREIGN = -(1 << 60)  # the node was made in another thread: FOREIGN - context of its module

# The duration column.
RAISED = -1
PASSED_ON = -2  # to a tensor subclass, whose own operators follow
ALERT = -(1 << 10)  # no operator but an alert: ALERT - event that met the rule

# The source column: number of the line. OWN is added for the user's code that runs inside backward (a hook, the backward
# of an autograd.Function): its operators stand at their own line, all others of backward at that of their forward operator.
OWN = 1 << 40

# The value column: serial of the storage << VERSION_BITS | version; NO_STORAGE for a tensor without one.
VERSION_BITS = 32
NO_STORAGE = -1

# The slot column. At least 0: a row of the statistics table. Below: why there is none.
NOT_ASKED = -1  # by `stats`, `modules`, `ops`
UNSUPPORTED = -2  # no statistics for this kind of tensor
UNREADY = -3  # memory that nobody has written yet
TABLE_FULL = -4  # more values in one batch than the table holds
FAILED = -5  # the attempt raised
EMPTY = -6  # no elements: counts are 0
IN_FLIGHT = -7  # a collective may still be writing it; the next operator that uses it comes after the wait
# From here on it stays so until somebody writes that memory.
UNTIL_WAIT = -8  # the same, but only `wait_tensor` says when it has arrived
SCRATCH = -9  # what a kernel left for its own backward, and filled in part
