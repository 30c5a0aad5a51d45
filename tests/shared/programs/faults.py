"""Programs that raise; `FAULTS` maps the name of each to it and to what torch says."""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import vmap
from torch.utils.checkpoint import checkpoint

from programs import Build

FAULTS: dict[str, tuple[Build, str]] = {}
CHANGED = "modified by an inplace operation"
INFERENCE = "Inplace update to inference tensor"


def fault(message, model=lambda: nn.Linear(3, 3)):
    """Register a program `run(model)` that raises an error with this message."""

    def register(run):
        FAULTS[run.__name__.replace("_", " ")] = lambda: (model(), run), message
        return run

    return register


def saved(model):
    """A value that autograd has saved, and the loss that needs it."""
    value = model(torch.randn(2, 3)).exp()
    return value, value.sum()


# ---------------------------------------------------------------------------------------------- a saved value was written
@fault(CHANGED)
def write_to_a_saved_value(model):
    value, loss = saved(model)
    value.mul_(2)
    loss.backward()


@fault(CHANGED)
def write_to_a_view_of_a_saved_value(model):
    value, loss = saved(model)
    value.detach()[0].zero_()
    loss.backward()


@fault(CHANGED)
def foreach_write_to_a_saved_value(model):
    value, loss = saved(model)
    with torch.no_grad():
        torch._foreach_add_([torch.ones(1), value], 1.0)
    loss.backward()


@fault(CHANGED)
def write_to_a_list_of_results(model):
    value, loss = saved(model)
    torch.ops.aten.unbind_copy.int_out(torch.ones(2, 2, 3), out=[value.detach(), torch.empty(2, 3)])
    loss.backward()


@fault(CHANGED)
def out_is_a_saved_value(model):
    value, loss = saved(model)
    torch.add(torch.ones(2, 3), 1, out=value.detach())
    loss.backward()


@fault(CHANGED)
def foreach_optimizer_before_backward(model):
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    x = model(torch.randn(2, 3))
    loss = model(x).sum()
    loss.backward(retain_graph=True)
    optimizer.step()
    loss.backward()


@torch.library.custom_op("faults::lies", mutates_args=())
def lies(x: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    return x.clone()


LIBRARY = torch.library.Library("faults", "FRAGMENT")
LIBRARY.define("doubles_(Tensor(a!) x) -> ()")
LIBRARY.impl("doubles_", lambda x: (x.mul_(2), None)[1], "CPU")


@fault(CHANGED)
def custom_op_that_hides_its_write(model):
    value, loss = saved(model)
    with torch.no_grad():
        lies(value)
    loss.backward()


@fault(CHANGED)
def custom_op_whose_kernel_writes(model):
    value, loss = saved(model)
    with torch.no_grad():
        torch.ops.faults.doubles_(value)
    loss.backward()


@fault(CHANGED)
def write_in_a_backward_hook(model):
    value, loss = saved(model)
    other = value * 1
    other.register_hook(lambda g: value.detach().zero_() + g)
    (loss + other.sum()).backward()


# ---------------------------------------------------------------------------------------------- writes that are refused
@fault("unsupported operation: more than one element of the written-to tensor refers to a single memory location")
def write_to_expanded_memory(model):
    torch.ones(3, 1).expand(3, 4).add_(1)


@fault("is a view and is being modified inplace")
def write_to_a_view_from_unbind(model):
    for row in model(torch.randn(2, 3)):
        row.mul_(2)


@fault("a leaf Variable that requires grad")
def write_to_a_leaf(model):
    model.weight.mul_(2)


@fault("a view of a leaf Variable that requires grad")
def write_to_a_view_of_a_leaf(model):
    model.weight[0].mul_(2)


@fault("don't support automatic differentiation")
def out_that_requires_grad(model):
    torch.add(torch.ones(3), 1, out=torch.ones(3, requires_grad=True))


@fault(INFERENCE)
def write_to_an_inference_tensor(model):
    with torch.inference_mode():
        x = torch.ones(2)
    x.add_(1)


@fault(INFERENCE)
def foreach_write_to_inference_tensors(model):
    with torch.inference_mode():
        x = [torch.ones(2), torch.ones(3)]
    torch._foreach_add_(x, 1.0)


@fault("Inference tensors cannot be saved for backward")
def save_an_inference_tensor(model):
    with torch.inference_mode():
        x = torch.ones(2, 3)
    model(x).sum().backward()


# ---------------------------------------------------------------------------------------------- other mistakes
@fault("mat1 and mat2 shapes cannot be multiplied")
def shapes(model):
    model(torch.randn(2, 4))


@fault("shapes cannot be multiplied")
def shapes_in_inference_mode(model):
    with torch.inference_mode():
        model(torch.randn(5, 7, 4).transpose(0, 1))


@fault("must have the same dtype")
def dtypes(model):
    model(torch.ones(2, 3, dtype=torch.float64))


@fault("index out of range in self", lambda: nn.Embedding(4, 2))
def index(model):
    model(torch.tensor([1, 7]))


@fault("unsupported operand type(s) for +: 'Tensor' and 'object'")
def operand(model):
    torch.ones(2) + object()


@fault("must be Tensor, not str")
def argument(model):
    torch.mm(torch.ones(2, 2), "b")


@fault("not implemented for 'UInt16'")
def kernel(model):
    torch.arange(4, dtype=torch.uint16)


@fault("Could not run 'aten::cumsum' with arguments from the 'SparseCPU' backend")
def backend(model):
    torch.eye(2).to_sparse().cumsum(0)


@fault("a second time")
def backward_twice(model):
    _, loss = saved(model)
    loss.backward()
    loss.backward()


@fault("grad can be implicitly created only for scalar outputs")
def backward_of_a_vector(model):
    model(torch.ones(2, 3)).backward()


@fault("appears to not have been used in the graph")
def unused(model):
    torch.autograd.grad(model(torch.ones(2, 3)).sum(), torch.ones(3, requires_grad=True))


@fault("returned nan values in its 0th output")
def anomaly(model):
    with warnings.catch_warnings(), torch.autograd.set_detect_anomaly(True):
        warnings.simplefilter("ignore")
        (model(torch.ones(2, 3)).abs().neg().sqrt() * 1).sum().backward()


class Refuses(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise LookupError("no gradient today")


@fault("no gradient today")
def custom_backward(model):
    Refuses.apply(model(torch.ones(2, 3))).sum().backward()


@fault("Function ShrinksBackward returned an invalid gradient")
def invalid_gradient(model):
    class Shrinks(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient[0]

    Shrinks.apply(model(torch.ones(2, 3))).sum().backward()


@fault("A different number of tensors was saved during the original forward and recomputation")
def recomputed_differently(model):
    calls = []

    def region(x):
        calls.append(1)
        return model(x).exp() if len(calls) == 1 else model(x)

    checkpoint(region, torch.ones(2, 3, requires_grad=True), use_reentrant=False).sum().backward()


@fault("is non-finite, so it cannot be clipped")
def clipping(model):
    (model(torch.ones(2, 3)).sum() * float("inf")).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)


@fault("does not have a deterministic implementation")
def determinism(model):
    torch.use_deterministic_algorithms(True)
    try:
        F.max_unpool2d(torch.ones(1, 1, 1, 1), torch.zeros(1, 1, 1, 1, dtype=torch.int64), 2)
    finally:
        torch.use_deterministic_algorithms(False)


@fault("Use of masked_fill_ on expanded tensors is deprecated")
def warning_as_error(model):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.ones(1, 2).expand(2, 2).masked_fill_(torch.ones(2, 2, dtype=torch.bool), 1.0)


@fault("vmap: It looks like you're calling .item() on a Tensor")
def item_in_vmap(model):
    vmap(lambda x: x * x.sum().item())(torch.ones(2, 3))


@fault("Data-dependent branching")
def graph_break(model):
    torch._dynamo.reset()
    torch.compile(lambda x: x if x.sum() > 0 else -x, backend="eager", fullgraph=True)(torch.ones(3))


@fault("object has no attribute 'wieght'")
def attribute(model):
    model.wieght  # noqa: B018


@fault("takes 2 positional arguments but 3 were given")
def call(model):
    model(torch.ones(3), torch.ones(3))
