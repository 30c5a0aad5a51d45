"""
Every private torch name that dispatchmon uses, in one place.

Each is pinned by a test in `tests/test_torch_internals.py` that says what is needed of it and fails when torch changes it.
Seen to exist and to behave alike from torch 2.8.0 on.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import wraps
from types import CodeType, FrameType
from typing import Any

import torch
from torch._C._dynamo import eval_frame
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.optim import Optimizer
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import _CheckpointFrame

_C: Any = torch._C
_KEY = _C.DispatchKey

next_sequence_number: Callable[[], int] = _C._autograd._get_sequence_nr
"""The number that the next autograd node of this thread will get."""
graph_task: Callable[[], int] = _C._current_graph_task_id
"""Number of the backward pass that runs in this thread; -1 outside of one."""
running_node: Callable[[], Any] = _C._current_autograd_node
"""The autograd node that runs in this thread, or None."""
saved_tensors_hooks: Callable[[bool], Any] = _C._autograd._top_saved_tensors_default_hooks
"""The innermost pair of default hooks on saved tensors, or None."""
NOT_NUMBERED = (1 << 64) - 1
"""Sequence number of every `AccumulateGrad` node."""
ENGINE_CODE: CodeType = torch.autograd.graph._engine_run_backward.__code__
"""Code of the frame from which every backward pass starts."""
plain_tensor_dispatch: Any = _C._disabled_torch_dispatch_impl
"""What `__torch_dispatch__` is for a tensor subclass that does not override it."""
jit_tracing_state: Callable[[], Any] = _C._get_tracing_state
"""Not None while `torch.jit.trace` runs."""
plain_module_call: Any = torch.nn.Module._wrapped_call_impl
"""`nn.Module.__call__` as torch defines it: `_compiled_call_impl` if there is one, else `_call_impl`."""
call_implementation: CodeType = torch.nn.Module._call_impl.__code__
"""Code of the frame below which a module's `forward` runs."""
current_dispatch_mode: Callable[[], Any] = _python_dispatch._get_current_dispatch_mode
"""The innermost dispatch mode of this thread, or None."""
address_of: Callable[[torch.Tensor], int] = _C._data_address
"""Where a tensor's storage begins; `data_ptr` would copy memory that is shared until it is written."""
without_modes: Callable[[], AbstractContextManager[None]] = _python_dispatch._disable_current_modes
"""A block in which no dispatch mode sees what runs."""
shows_savings: bool = hasattr(_C._autograd.SavedTensor, "data")
"""Whether torch shows what an autograd node saved without unpacking it."""
distributed: Callable[[], bool] = getattr(torch.distributed, "is_initialized", lambda: False)
"""Whether this process is in a group of several."""
_storage_users: Callable[[int], int] | None = getattr(_C, "_storage_Use_Count", None)
DisableTorchFunction: type[AbstractContextManager[None]] = _C.DisableTorchFunction
"""A block in which neither a subclass nor a mode sees what is asked of a tensor through `__torch_function__`."""

TORCH = os.path.dirname(torch.__file__) + os.sep
"""Folder of torch, with the separator: torchvision is not torch."""
OURS = os.path.dirname(__file__) + os.sep
"""Folder of this package, likewise."""
_OPTIM = os.path.join(TORCH, "optim") + os.sep
_DTENSOR = os.path.join(TORCH, "distributed", "tensor") + os.sep
_FSDP = os.path.join(TORCH, "distributed", "fsdp")
_ABOVE_THE_KERNELS = (
    "Python", "PythonTLSSnapshot", "PythonDispatcher", "PreDispatch", "Functionalize", "ADInplaceOrView",
    "AutogradOther", "AutogradCPU", "AutogradCUDA", "AutogradXPU", "AutogradMPS", "AutogradMeta", "AutogradNestedTensor",
    "AutogradPrivateUse1", "AutocastCPU", "AutocastCUDA", "AutocastXPU", "AutocastMPS", "AutocastPrivateUse1",
    "FuncTorchDynamicLayerFrontMode", "FuncTorchDynamicLayerBackMode", "FuncTorchBatched", "FuncTorchGradWrapper",
)  # fmt: skip


def is_shared(tensor: torch.Tensor) -> bool:
    """Whether another tensor has the memory of this one as well: the storage's own Python object counts as one."""
    return _storage_users is not None and _storage_users(tensor.untyped_storage()._cdata) > 2


def _keys_above_the_kernels() -> Any:
    keys = _C.DispatchKeySet(_KEY.Python)
    for name in _ABOVE_THE_KERNELS:
        keys = keys | _C.DispatchKeySet(getattr(_KEY, name))
    return keys


_ABOVE = _keys_above_the_kernels()


def load_dynamo() -> None:
    """Import what `torch.compile` is made of. On torch 2.8 that fails in a block without `__torch_function__`."""
    importlib.import_module("torch._dynamo")


def dynamo_takes_for_plain(call: Any) -> None:
    """
    Have dynamo trace module calls through this `nn.Module.__call__` as it does through torch's own: straight to `forward`.

    Else what is compiled under a wrapper is guarded by it, and compiled again without it. Dynamo remembers what it finds
    when it is imported, which the first operator under any mode brings about anyway.
    """
    from torch._dynamo.variables import nn_module

    nn_module.unpatched_nn_module_call = call  # type: ignore[attr-defined]


def take_off_stack(mode: Any) -> None:
    """
    Leave a dispatch mode above which others were entered that are still there.

    Each mode remembers whether others were on when it was entered, so the ones above are left and entered again, by torch's
    part of that alone.
    """
    if not any(each is mode for each in _python_dispatch._get_current_dispatch_mode_stack()):
        return
    leave: Any = TorchDispatchMode.__exit__
    enter: Any = TorchDispatchMode.__enter__
    above: list[Any] = []
    while (innermost := current_dispatch_mode()) is not mode:
        above.append(innermost)
        leave(innermost, None, None, None)
    mode.__exit__(None, None, None)
    for each in reversed(above):
        enter(each)


def is_opaque(kind: type) -> bool:
    """Whether tensors of this class handle operators themselves; torch's own tracing does not, while a mode runs."""
    dispatch = kind.__torch_dispatch__  # type: ignore[attr-defined]
    return dispatch is not plain_tensor_dispatch and not issubclass(kind, (FakeTensor, FunctionalTensor))


def kernels_only() -> AbstractContextManager[None]:
    """A block in which operators go straight to their kernels: no mode, subclass, autograd, autocast or transform sees them."""
    guard: AbstractContextManager[None] = _C._ExcludeDispatchKeyGuard(_ABOVE)
    return guard


def moves_version_counters(schema: Any) -> bool:
    """Whether the operator has a kernel of its own, above the modes, that moves the version counters of what it writes."""
    name = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
    return bool(_C._dispatch_has_kernel_for_dispatch_key(name, "ADInplaceOrView"))


@contextmanager
def version_counters_moving() -> Iterator[None]:
    """
    A block in which writes through ATen move version counters, as they do without a mode.

    In a mode's handler the key that does it is excluded: the writes of `_foreach_add_`, and undeclared ones inside a custom
    operator, would go unnoticed by autograd's check.
    """
    included, excluded = _C._dispatch_tls_local_include_set(), _C._dispatch_tls_local_exclude_set()
    with _C._ForceDispatchKeyGuard(included, excluded.remove(_KEY.ADInplaceOrView)):
        yield


_USED_WITHIN_KERNELS = _C.DispatchKeySet(_KEY.Conjugate)
for _name in (
    "Negative",
    "ZeroTensor",
    "AutocastCPU",
    "AutocastCUDA",
    "AutocastXPU",
    "AutocastMPS",
    "AutocastPrivateUse1",
):
    _USED_WITHIN_KERNELS = _USED_WITHIN_KERNELS | _C.DispatchKeySet(getattr(_KEY, _name))


@contextmanager
def keys_of_the_caller() -> Iterator[None]:
    """
    A block in which lazy conjugation and autocast reach the operators inside a kernel, as they do without a mode.

    In a mode's handler every key above Python is excluded: `linalg_pinv` of a complex matrix, whose kernel conjugates lazily,
    comes out wrong there, and `_trilinear` ignores autocast.
    """
    included, excluded = _C._dispatch_tls_local_include_set(), _C._dispatch_tls_local_exclude_set()
    with _C._RestorePythonTLSSnapshot():
        outside = _C._dispatch_tls_local_exclude_set()
    with _C._ForceDispatchKeyGuard(included, excluded - (_USED_WITHIN_KERNELS - outside)):
        yield


def call_composite(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """
    Run a composite operator by its C++ decomposition, as `inference_mode` does where there is no mode.

    In a mode's handler ADInplaceOrView is excluded, so `weight.t().requires_grad` turns False there and `linear` takes
    another path, with other bits. The caller re-enters its mode, so that it sees the parts.
    """
    _C._dispatch_tls_set_dispatch_key_excluded(_KEY.ADInplaceOrView, False)
    try:
        return func._op_dk(_KEY.CompositeImplicitAutograd, *args, **kwargs)
    finally:
        _C._dispatch_tls_set_dispatch_key_excluded(_KEY.ADInplaceOrView, True)


def recomputing() -> bool:
    """Whether a non-reentrant checkpoint is running its region again."""
    hooks = saved_tensors_hooks(False)
    return bool(hooks) and "_recomputation_hook" in getattr(hooks[0], "__qualname__", "")


def checkpoint_that_refused(frame: FrameType) -> Any:
    """The checkpointed region whose inputs autograd refused in this frame of an error; None if this is no such frame."""
    asks = getattr(_CheckpointFrame, "get_inputs", None)  # missing where savings are not shown either
    return frame.f_locals["self"] if asks is not None and frame.f_code is asks.__code__ else None


def checkpoint_inputs(region: Any) -> list[Any]:
    """What a checkpointed region keeps to be run again: its tensors, which are not unpacked, and None for anything else."""
    return [getattr(argument, "data", None) for argument in region.saved_args]


def only_for_its_shape(frame: FrameType | None) -> bool:
    """Whether DTensor's own code runs an operator on fake tensors, to know the shape of a result: nothing is computed."""
    if _C._get_dispatch_mode(_C._TorchDispatchModeKey.FAKE) is None:
        return False
    while frame is not None and frame.f_code.co_filename.startswith((TORCH, OURS)):
        if frame.f_code.co_filename.startswith(_DTENSOR):
            return True
        frame = frame.f_back
    return False


def gathered_by_fsdp(frame: FrameType | None) -> bool:
    """Whether FSDP's own code leads to this frame: it writes the same parameters again before backward."""
    while frame is not None and frame.f_code.co_filename.startswith((TORCH, OURS)):
        if frame.f_code.co_filename.startswith(_FSDP):
            return True
        frame = frame.f_back
    return False


def an_optimizer_was_made() -> bool:
    """Whether any optimizer has been constructed in this process: its class then carries a hooked `step`."""
    pending: list[type] = [Optimizer]
    while pending:
        kind = pending.pop()
        if getattr(kind.__dict__.get("step"), "hooked", False):
            return True
        pending += kind.__subclasses__()
    return False


def runs_below(frame: FrameType | None, code: CodeType) -> bool:
    """Whether a frame of this code is among the callers of this one."""
    while frame is not None:
        if frame.f_code is code:
            return True
        frame = frame.f_back
    return False


def never_compile(function: Any, but_callees: bool = False) -> None:
    """Have `torch.compile` leave this function alone where it takes frames as they come, and all that it calls or not."""
    action = eval_frame._FrameAction
    then = action.DEFAULT if but_callees else action.SKIP
    eval_frame.set_code_exec_strategy(function.__code__, eval_frame._FrameExecStrategy(action.SKIP, then))


def take_higher_order_operators(kind: type) -> Callable[[], None]:
    """
    Have operators such as `cond` and `flex_attention` come to modes of this class; returns what ends that.

    From torch 2.9 on the class says so itself. Before, each operator has a table of the modes that it knows, and refuses to
    run under any other.
    """
    if hasattr(TorchDispatchMode, "supports_higher_order_operators"):
        return lambda: None
    operators = [op for op in torch._ops._higher_order_ops.values() if kind not in op.python_key_table]

    def rule(operator: Any) -> Any:
        return lambda mode, *args, **kwargs: mode.__torch_dispatch__(operator, (), args, kwargs)

    for each in operators:
        each.python_key_table[kind] = rule(each)

    def end() -> None:
        for each in operators:
            each.python_key_table.pop(kind, None)

    return end


_WATCHING_COMPILED: list[Callable[[bool], None]] = []


def watch_compiled(call: Callable[[bool], None]) -> Callable[[], None]:
    """
    Have `call(True)` called when code that `torch.compile` made is about to run again; returns what ends that.

    `call(False)` says that some was made, or tried to be made, which then runs for the first time.
    """
    from torch._dynamo.callback import callback_handler

    def made(*_: Any) -> None:
        call(False)

    def end() -> None:
        with suppress(ValueError):  # `torch._dynamo.reset()` took it off
            callback_handler.remove_end_callback(made)
        _WATCHING_COMPILED.remove(call)
        if not _WATCHING_COMPILED:
            found = eval_frame.set_guard_complete_hook(None)
            eval_frame.set_guard_complete_hook(getattr(found, "before", found))  # or somebody else's since

    callback_handler.register_end_callback(made)
    _WATCHING_COMPILED.append(call)
    if len(_WATCHING_COMPILED) == 1:
        before: Any = eval_frame.set_guard_complete_hook(None)

        def entered(found: bool) -> bool:
            if found:
                for each in _WATCHING_COMPILED:
                    each(True)
            return found if before is None else bool(before(found))

        hook: Any = entered
        hook.before = before
        never_compile(hook)
        eval_frame.set_guard_complete_hook(hook)
    return end


def frames_compiled() -> int:
    """How many frames `torch.compile` has compiled in this process since dynamo was reset."""
    from torch._dynamo.utils import counters

    return int(counters["frames"]["ok"])


def is_of_optimizers(code: CodeType) -> bool:
    """Whether this is code of torch's own optimizers."""
    return code.co_filename.startswith(_OPTIM)


def has_step_hooks(optimizer: Optimizer) -> bool:
    """Whether somebody else's code runs when this optimizer steps."""
    return bool(optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks)


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """The shard of a distributed tensor that this rank holds; any other tensor as it is."""
    local = getattr(tensor, "_local_tensor", None)
    return local if isinstance(local, torch.Tensor) else tensor


_AFTER_BACKWARD: list[Callable[[], None]] = []


def backward_is_over() -> None:
    """A backward pass that filled `.grad` has ended."""
    for each in tuple(_AFTER_BACKWARD):
        each()


def after_backward(call: Callable[[], None]) -> Callable[[], None]:
    """
    Have `call` called in the thread of each backward pass that fills `.grad`, when it is over; returns what ends that.

    The engine's own callbacks (of DDP, of FSDP) have run then. A hook on every parameter would see a gradient before those.
    """
    engine: Any = torch.autograd

    def end() -> None:
        if call in _AFTER_BACKWARD:
            _AFTER_BACKWARD.remove(call)
        door = engine._engine_run_backward
        if not _AFTER_BACKWARD and getattr(door, "of_dispatchmon", False):  # else: somebody else wrapped it since
            engine._engine_run_backward = door.__wrapped__

    _AFTER_BACKWARD.append(call)
    original = engine._engine_run_backward
    if getattr(original, "of_dispatchmon", False):
        return end

    @wraps(original)
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if kwargs.get("accumulate_grad") and graph_task() == -1 and not torch.compiler.is_compiling():
            backward_is_over()
        return result

    run_backward.of_dispatchmon = True  # type: ignore[attr-defined]
    never_compile(run_backward, but_callees=True)
    never_compile(backward_is_over)
    engine._engine_run_backward = run_backward
    return end
