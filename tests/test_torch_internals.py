"""Each private torch name that is used still exists and still does what is needed of it."""

from __future__ import annotations

import inspect
import sys
from contextlib import nullcontext
from types import FunctionType

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from dispatchmon import torch_internals as internals
from recorded import COMPILES_UNDER_MODES, needs_compilation


class Inside(TorchDispatchMode):
    """Calls `look(func)` inside the handler of each operator."""

    def __init__(self, look):
        super().__init__()
        self.look, self.seen = look, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(self.look(func))
        return func(*args, **(kwargs or {}))


def test_sequence_number_is_that_of_the_next_node() -> None:
    """A node gets the number that was peeked at, and the peek then shows one more."""
    x = torch.ones(2, requires_grad=True)
    number = internals.next_sequence_number()
    y = x * 2
    assert y.grad_fn._sequence_nr() == number
    assert internals.next_sequence_number() == number + 1


def test_node_is_numbered_before_its_operator_is_dispatched() -> None:
    """Inside the handler the operator in hand owns the number before the peek."""
    x = torch.ones(2, requires_grad=True)
    with Inside(lambda func: internals.next_sequence_number()) as mode:
        y = x * 2
    assert mode.seen == [y.grad_fn._sequence_nr() + 1]


def test_graph_task_and_running_node() -> None:
    """Outside backward there is neither; inside, the node is the one that the forward operator made."""
    assert internals.graph_task() == -1
    assert internals.running_node() is None
    x = torch.ones(2, requires_grad=True)
    y, seed = x.exp(), torch.ones(2)
    with Inside(lambda func: (internals.graph_task(), internals.running_node())) as mode:
        torch.autograd.backward(y, seed)
    inside = [node for task, node in mode.seen if node is not None]
    assert all(task >= 0 for task, _ in mode.seen)
    assert inside[0]._sequence_nr() == y.grad_fn._sequence_nr()


def test_accumulate_grad_is_not_numbered_and_knows_its_variable() -> None:
    """All AccumulateGrad nodes carry the same number; `variable` is the leaf."""
    x = torch.ones(2, requires_grad=True)
    node = (x * 2).grad_fn.next_functions[0][0]
    assert node._sequence_nr() == internals.NOT_NUMBERED
    assert node.variable is x


def test_engine_code_is_the_frame_that_runs_backward() -> None:
    """Operators of backward are called below a frame with this code."""
    x = torch.ones(2, requires_grad=True)

    def look(func):
        return internals.runs_below(sys._getframe(), internals.ENGINE_CODE)

    y = x.exp().sum()
    with Inside(look) as mode:
        y.backward()
    assert mode.seen
    # ones_like, the seed of backward, is made before the engine starts
    assert all(mode.seen[1:])


@pytest.mark.parametrize(("reentrant", "expected"), [(False, True), (True, False)])
def test_recomputing_tells_a_nonreentrant_checkpoint(reentrant, expected) -> None:
    """True while a non-reentrant checkpoint runs its region again; a reentrant one is told by its node."""
    x = torch.ones(2, requires_grad=True)
    y = checkpoint(lambda x: x.sin().exp(), x, use_reentrant=reentrant)
    assert not internals.recomputing()
    with Inside(lambda func: (str(func), internals.recomputing(), type(internals.running_node()).__name__)) as mode:
        y.sum().backward()
    (again,) = [seen for seen in mode.seen if seen[0] == "aten.sin.default"]
    assert again[1] is expected
    assert reentrant == (again[2] == "CheckpointFunctionBackward")


def test_kernels_only_hides_operators_from_modes_autograd_and_autocast() -> None:
    """In the block no mode sees an operator, no node is built, nothing is cast."""
    x = torch.ones(3, 3, requires_grad=True)
    with Inside(lambda func: func) as mode, torch.autocast("cpu", dtype=torch.bfloat16), internals.kernels_only():
        y = x @ x
    assert mode.seen == []
    assert y.grad_fn is None
    assert y.dtype == torch.float32


def test_version_counters_move_where_they_should() -> None:
    """In a handler a write moves no counter, inside the block it does."""
    x = torch.zeros(2)
    moved = []

    class Writes(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            before = x._version
            torch.ops.aten.add_.Scalar(x, 1)
            between = x._version
            with internals.version_counters_moving():
                torch.ops.aten.add_.Scalar(x, 1)
            moved.append((between - before, x._version - between))
            return func(*args, **(kwargs or {}))

    with Writes():
        torch.ones(1)
    assert moved == [(0, 1)]


def test_composite_call_keeps_the_bits_of_inference_mode() -> None:
    """`linear` on a non-contiguous input: with the cure the same bits as without a mode."""
    torch.manual_seed(0)
    linear, x = nn.Linear(24, 40), torch.randn(7, 24, 5).transpose(1, 2)

    class Cured(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is torch.ops.aten.linear.default:
                Cured.calls += 1
                with self:
                    return internals.call_composite(func, args, kwargs or {})
            return func(*args, **(kwargs or {}))

    with torch.inference_mode():
        plain = linear(x)
        with Cured():
            cured = linear(x)
    assert Cured.calls == 1
    assert torch.equal(plain, cured)


def test_an_optimizer_that_was_made_is_noticed() -> None:
    """Constructing an optimizer hooks `step` of its class."""

    class Mine(torch.optim.SGD):
        def step(self, closure=None):  # type: ignore[no-untyped-def]
            return None

    assert not getattr(Mine.__dict__["step"], "hooked", False)
    Mine([nn.Parameter(torch.ones(1))], lr=0.1)
    assert Mine.__dict__["step"].hooked
    assert internals.an_optimizer_was_made()


def test_a_pre_hook_of_an_optimizer_is_called_by_the_frame_that_steps() -> None:
    """The caller's code object, looked for among the callers of an operator, tells whether `step` still runs."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    codes = []
    handle = register_optimizer_step_pre_hook(lambda *call: codes.append(sys._getframe(1).f_code))
    x = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([x], lr=0.1, foreach=False)
    x.grad = torch.ones(1)
    try:
        with Inside(
            lambda func: func.namespace == "profiler" or internals.runs_below(sys._getframe(), codes[0])
        ) as mode:
            optimizer.step()
    finally:
        handle.remove()
    assert len(mode.seen) > 1
    assert all(mode.seen)


def test_plain_subclasses_do_not_override_dispatch() -> None:
    """Parameter and an ordinary subclass carry the disabled implementation; a wrapper subclass does not."""

    class Ordinary(torch.Tensor):
        pass

    assert nn.Parameter.__torch_dispatch__ is internals.plain_tensor_dispatch
    assert Ordinary.__torch_dispatch__ is internals.plain_tensor_dispatch
    from torch.testing._internal.two_tensor import TwoTensor

    assert TwoTensor.__torch_dispatch__ is not internals.plain_tensor_dispatch


def test_current_dispatch_mode_is_the_innermost() -> None:
    """The mode on top of the stack."""
    assert internals.current_dispatch_mode() is None
    with Inside(lambda func: None), Inside(lambda func: None) as inner:
        assert internals.current_dispatch_mode() is inner


def test_storage_keeps_its_python_object_and_attributes() -> None:
    """Identity by a tag: the same object for views and detached tensors, gone with the memory, not copied by clone."""
    x = torch.ones(4)
    x.untyped_storage().tag = "mine"
    assert x[1:].untyped_storage().tag == x.detach().untyped_storage().tag == x.data.untyped_storage().tag == "mine"
    assert not hasattr(x.clone().untyped_storage(), "tag")
    assert x.untyped_storage() is x.view(2, 2).untyped_storage()


def test_after_backward_comes_once_per_pass_that_fills_grad() -> None:
    """After `backward`, when `.grad` is there; not after `autograd.grad`, not for a pass inside a pass, not once it was ended."""
    from torch.utils.checkpoint import checkpoint

    door, seen = torch.autograd._engine_run_backward, []
    x = torch.ones(2, requires_grad=True)
    end = internals.after_backward(lambda: seen.append(x.grad is not None))
    try:
        torch.autograd.grad((x * 2).sum(), x)
        assert seen == []
        (x * 2).sum().backward()
        torch.autograd.backward((x * 2).sum())
        assert seen == [True, True]
        checkpoint(lambda y: y * 2, x, use_reentrant=True).sum().backward()
        assert seen == [True, True, True]
    finally:
        end()
    assert torch.autograd._engine_run_backward is door
    (x * 2).sum().backward()
    assert len(seen) == 3


def test_two_watchers_of_backward_may_end_in_any_order() -> None:
    """The one that ends first, while the other stands before it, is silent from then on."""
    door = torch.autograd._engine_run_backward
    seen: list[str] = []
    first, second = (internals.after_backward(lambda name=name: seen.append(name)) for name in "ab")
    first()
    torch.ones(1, requires_grad=True).sum().backward()
    second()
    assert seen == ["b"]
    assert torch.autograd._engine_run_backward is door


def test_local_part_of_a_distributed_tensor() -> None:
    """A DTensor's own shard; any other tensor is its own."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    alone = not torch.distributed.is_initialized()  # else the group that another test of this process uses will do
    if alone:
        torch.distributed.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    try:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor, Shard

        shard = torch.arange(3.0)
        whole = DTensor.from_local(shard, init_device_mesh("cpu", (torch.distributed.get_world_size(),)), [Shard(0)])
        assert torch.equal(internals.local_part(whole), shard)
        assert internals.local_part(shard) is shard
    finally:
        if alone:
            torch.distributed.destroy_process_group()


def test_address_of_does_not_copy_shared_memory() -> None:
    """It is where the storage begins, and a copy-on-write tensor stays one, which `data_ptr` would not leave it."""
    x = torch.randn(8)
    assert internals.address_of(x[2:]) == x.untyped_storage().data_ptr()
    lazy = torch._lazy_clone(x)
    assert internals.address_of(lazy) == internals.address_of(x)
    assert torch._C._is_cow_tensor(lazy)


@pytest.mark.parametrize(("op", "own"), [
    (torch.ops.aten.add_.Tensor, True), (torch.ops.aten._foreach_add_.Scalar, False), (torch.ops.aten.unbind_copy.int_out, False),
])  # fmt: skip
def test_operators_on_lists_do_not_move_version_counters_themselves(op, own) -> None:
    """Those on one tensor have a kernel for it above the modes; those on lists have none."""
    assert internals.moves_version_counters(op._schema) is own


def test_a_mode_is_taken_off_from_below_others() -> None:
    """Taking off the outer of two modes leaves the inner one where it is; one that is not there changes nothing."""

    def flags():
        return (
            _python_dispatch.is_in_torch_dispatch_mode(),
            not COMPILES_UNDER_MODES or _python_dispatch.is_in_any_mode_without_ignore_compile_internals(),
        )

    before = flags()
    outer, inner = Inside(lambda func: None), Inside(lambda func: None)
    outer.__enter__()
    with inner:
        internals.take_off_stack(outer)
        internals.take_off_stack(outer)
        torch.ones(1)
        assert internals.current_dispatch_mode() is inner
        assert flags() == (True, True)
    assert flags() == before
    assert (len(outer.seen), len(inner.seen)) == (0, 1)
    assert internals.current_dispatch_mode() is None


def test_a_module_call_is_torchs_own() -> None:
    """`nn.Module.__call__` is what the wrapper may do itself: `_call_impl`, unless the module was compiled."""
    assert nn.Module.__call__ is internals.plain_module_call
    assert nn.Linear(1, 1)._compiled_call_impl is None
    assert callable(nn.Module._call_impl)


def test_nothing_is_seen_of_what_is_asked_of_a_tensor() -> None:
    """In the block neither a subclass's `__torch_function__` nor a `TorchFunctionMode` is called."""
    calls = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            calls.append(function)
            return function(*args, **(kwargs or {}))

    class Sub(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            calls.append(function)
            return super().__torch_function__(function, types, args, kwargs or {})

    x = torch.ones(2).as_subclass(Sub)
    calls.clear()
    with Mode(), internals.DisableTorchFunction():
        assert x.shape == (2,)
        x.untyped_storage()
    assert not calls


def test_tensors_of_torchs_own_tracing_are_not_opaque() -> None:
    """A mode sees fake tensors first and must call the operator; a wrapper subclass takes it apart itself."""
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.distributed.tensor import DTensor

    assert not internals.is_opaque(FakeTensor)
    assert not internals.is_opaque(nn.Parameter)
    assert internals.is_opaque(DTensor)


def test_dynamo_goes_straight_to_forward_where_the_call_is_plain() -> None:
    """What dynamo takes for torch's own `nn.Module.__call__` is remembered under this name, where it is compared."""
    from torch._dynamo.variables import nn_module

    assert nn_module.unpatched_nn_module_call is internals.plain_module_call
    try:
        internals.dynamo_takes_for_plain(print)
        assert nn_module.unpatched_nn_module_call is print
    finally:
        internals.dynamo_takes_for_plain(internals.plain_module_call)


def compiled_frames(run, monitored):
    """How many frames dynamo takes up while `run` is compiled and called twice."""
    torch._dynamo.reset()
    counters.clear()
    whole = torch.compile(run, backend="eager")
    with monitored:
        whole(torch.ones(3))
        whole(torch.ones(3))
    return dict(counters["frames"])


@needs_compilation
def test_never_compile_leaves_a_handler_alone() -> None:
    """A graph break in a loop makes dynamo run the loop as it is, and look at every frame that the loop calls."""

    class Handler(TorchDispatchMode):
        @classmethod
        def _should_skip_dynamo(cls):
            return False

        @classmethod
        def ignore_compile_internals(cls):
            return True

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return self.passed_on(func, args, kwargs or {})

        def passed_on(self, func, args, kwargs):
            return func(*args, **kwargs)

    def loop(x):
        for _ in range(3):
            x = x * 2
            torch._dynamo.graph_break()
        return x

    alone = compiled_frames(loop, nullcontext())
    assert compiled_frames(loop, Handler()) != alone
    handler = Handler.__torch_dispatch__  # dynamo has met its code, and `reset` would take back what is said of it
    Handler.__torch_dispatch__ = FunctionType(handler.__code__.replace(), handler.__globals__, argdefs=((), None))
    internals.never_compile(Handler.__torch_dispatch__)
    assert compiled_frames(loop, Handler()) == alone


def test_a_step_of_torchs_own_is_known_and_hooks_on_it_as_well() -> None:
    """The line that called a step stands for all that runs in it, unless somebody else's code runs there."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    assert internals.is_of_optimizers(inspect.unwrap(torch.optim.SGD.step).__code__)
    assert not internals.is_of_optimizers(torch.Tensor.__rsub__.__code__)
    assert not internals.has_step_hooks(optimizer)
    handle = optimizer.register_step_post_hook(lambda *_: None)
    assert internals.has_step_hooks(optimizer)
    handle.remove()
    assert not internals.has_step_hooks(optimizer)
    optimizer.register_step_pre_hook(lambda *_: None)
    assert internals.has_step_hooks(optimizer)


def test_compiled_code_that_runs_is_noticed() -> None:
    """It is made at the first call and for another shape, and entered again otherwise; two may watch, and end in any order."""
    torch._dynamo.reset()
    first, second = [], []
    end_first, end_second = internals.watch_compiled(first.append), internals.watch_compiled(second.append)
    twice = torch.compile(lambda x: x * 2, backend="eager", dynamic=False)
    made = internals.frames_compiled()
    twice(torch.ones(3))
    twice(torch.ones(3))
    assert first == second == [False, True]
    end_first()
    twice(torch.ones(4))
    twice(torch.ones(3))
    assert (first, second) == ([False, True], [False, True, False, True])
    assert internals.frames_compiled() - made == 2
    torch._dynamo.reset()  # forgets who asked to be told
    end_second()
    twice(torch.ones(3))
    assert len(second) == 4


def test_a_hook_on_guards_that_was_there_is_asked_and_put_back() -> None:
    """The one of `torch.compiler.set_enable_guard_collectives`, say."""
    torch._dynamo.reset()
    asked = []

    def theirs(found):
        asked.append(found)
        return found

    internals.eval_frame.set_guard_complete_hook(theirs)
    try:
        end = internals.watch_compiled(lambda again: None)
        twice = torch.compile(lambda x: x * 2, backend="eager")
        twice(torch.ones(3))
        twice(torch.ones(3))
        end()
    finally:
        assert internals.eval_frame.set_guard_complete_hook(None) is theirs
    assert asked == [True]


def test_a_shared_storage_is_told_from_one_that_is_not() -> None:
    """Gradients, saved values that are gone, attributes and references to the same tensor do not count; an alias does."""
    own = nn.Parameter(torch.ones(3))
    again = own
    (own * 2).sum().backward()
    own.untyped_storage().mark = 1
    assert not internals.is_shared(own)
    assert not internals.is_shared(again)
    shared = torch.ones(3)
    alias = nn.Parameter(shared)
    assert internals.is_shared(alias)
    del shared
    assert not internals.is_shared(alias)
    copy = alias.detach()
    assert internals.is_shared(copy)
