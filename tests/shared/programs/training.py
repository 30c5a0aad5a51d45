"""Models, optimizers and training loops."""

from __future__ import annotations

import contextlib
import copy
import io

import torch
import torch.nn.functional as F
from torch import nn

from programs import PROGRAMS, Program, program


def trained(model, optimizer, step, steps=3):
    """Train for a few steps; return the losses, the gradients and the optimizer's state."""
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = step(model)
        loss.backward()
        optimizer.step()
        losses.append(loss)
    return losses, [p.grad for p in model.parameters()], optimizer.state_dict()


@program("aten.relu_.default", "aten.native_batch_norm.default")
def convolutions_with_inplace_activations():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8),
        nn.SiLU(inplace=True), nn.MaxPool2d(2), nn.Dropout(0.2, inplace=True), nn.Flatten(), nn.Linear(8 * 9, 5),
    ).to(memory_format=torch.channels_last)  # fmt: skip

    def run(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        seen = trained(model, optimizer, lambda m: F.cross_entropy(m(torch.randn(4, 3, 8, 8)), torch.arange(4)))
        model.eval()
        return seen, model(torch.randn(2, 3, 8, 8))

    return model, run


def encoder():
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


@program("aten.native_layer_norm.default")
def transformer_encoder_in_training():
    def run(model):
        return trained(model, torch.optim.AdamW(model.parameters()), lambda m: m(torch.randn(2, 6, 16)).square().mean())

    return encoder(), run


@program("aten._transformer_encoder_layer_fwd.default", inference_mode=torch.inference_mode, no_grad=torch.no_grad)
def transformer_encoder_in_evaluation(grad_mode):
    def run(model):
        model.eval()
        padding = torch.tensor([[False] * 6, [False] * 3 + [True] * 3])
        with grad_mode():
            x = torch.randn(2, 6, 16)
            return model(x), model(x, src_key_padding_mask=padding)

    return encoder(), run


@program("aten.mkldnn_rnn_layer.default")
def lstm():
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(6, 8, num_layers=2, dropout=0.3, bidirectional=True, batch_first=True)
            self.out = nn.Linear(16, 3)

        def forward(self, x):
            packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 3]), batch_first=True)
            states, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
            return self.out(states + self.lstm(x)[0])

    def run(model):
        return trained(model, torch.optim.Adam(model.parameters()), lambda m: m(torch.randn(2, 5, 6)).square().sum())

    return Tagger(), run


@program("aten.embedding_dense_backward.default", "aten.embedding_renorm_.default")
def embedding_with_sparse_gradients():
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(20, 4, sparse=True)
            self.bag = nn.EmbeddingBag(20, 4, sparse=True, mode="sum")
            self.normed = nn.Embedding(20, 4, max_norm=0.5)

        def forward(self, i):
            return self.words(i).sum(1) + self.bag(i) + self.normed(i).mean(1)

    def run(model):
        sparse = torch.optim.SparseAdam([*model.words.parameters(), *model.bag.parameters()])
        return trained(model, sparse, lambda m: m(torch.randint(20, (3, 4))).square().sum())

    return Words(), run


@program("aten.leaky_relu_.default")
def gan_with_two_optimizers():
    model = nn.ModuleDict({
        "maker": nn.Sequential(nn.Linear(3, 8), nn.ReLU(inplace=True), nn.Linear(8, 4)),
        "judge": nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2, inplace=True), nn.Linear(8, 1)),
    })  # fmt: skip

    def run(model):
        for_maker = torch.optim.Adam(model["maker"].parameters(), lr=0.01)
        for_judge = torch.optim.Adam(model["judge"].parameters(), lr=0.01)
        losses = []
        for _ in range(3):
            fake = model["maker"](torch.randn(5, 3))
            for_judge.zero_grad()
            loss = (
                F.softplus(-model["judge"](torch.randn(5, 4))).mean() + F.softplus(model["judge"](fake.detach())).mean()
            )
            loss.backward()
            for_judge.step()
            for_maker.zero_grad()
            other = F.softplus(-model["judge"](fake)).mean()
            other.backward()
            for_maker.step()
            losses += [loss, other]
        return losses, for_maker.state_dict(), for_judge.state_dict()

    return model, run


def with_optimizer(kind, flags):
    def build():
        def run(model):
            optimizer = kind(model.parameters(), lr=0.01, weight_decay=0.1, **flags)
            seen = trained(model, optimizer, lambda m: m(torch.randn(4, 6)).square().mean())
            return seen, [p._version for p in model.parameters()]

        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)), run

    return build


for kind, in_foreach, in_fused in (
    (torch.optim.SGD, "aten._foreach_add_.List", "aten._fused_sgd_.default"),
    (torch.optim.Adam, "aten._foreach_lerp_.Scalar", "aten._fused_adam_.default"),
    (torch.optim.AdamW, "aten._foreach_mul_.Scalar", "aten._fused_adamw_.default"),
):
    for way, flags, shows in (
        ("for-loop", {"foreach": False}, ()), ("foreach", {"foreach": True}, (in_foreach,)), ("fused", {"fused": True}, (in_fused,)),
    ):  # fmt: skip
        PROGRAMS[f"{kind.__name__}, {way}"] = Program(with_optimizer(kind, flags), shows)


@program("aten.bmm.default")
def autocast_bfloat16():
    def run(model):
        def step(m):
            with torch.autocast("cpu", torch.bfloat16):
                return m(torch.randn(2, 6, 16)).float().square().mean()

        return trained(model, torch.optim.AdamW(model.parameters()), step)

    return encoder(), run


@program("aten._amp_foreach_non_finite_check_and_unscale_.default")
def gradient_scaler():
    def run(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        scales = []
        for i in range(4):
            optimizer.zero_grad()
            scaler.scale(model(torch.randn(3, 4)).square().mean() * (1e38 if i == 2 else 1)).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        assert len(set(scales)) > 1, "no step overflowed"
        return scales, scaler.state_dict(), [p.grad for p in model.parameters()]

    return nn.Linear(4, 2), run


@program("aten._foreach_norm.Scalar", "aten._foreach_mul_.Tensor")
def accumulation_and_clipping():
    def run(model):
        optimizer = torch.optim.AdamW(model.parameters())
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
        norms = []
        for _ in range(3):
            for _ in range(2):
                (model(torch.randn(4, 6)).square().mean() / 2).backward()
            kept = [p.grad for p in model.parameters()]
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1))
            assert all(a is p.grad for a, p in zip(kept, model.parameters(), strict=True))
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=False)
        nn.utils.clip_grad_value_(model.parameters(), 0.01)
        return norms, optimizer.state_dict(), schedule.state_dict()

    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 2)), run


@program("aten.addmm.default")
def lbfgs_with_a_closure():
    def run(model):
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")
        x, y = torch.randn(8, 3), torch.randn(8, 1)

        def closure():
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            return loss

        return [optimizer.step(closure) for _ in range(3)], optimizer.state_dict()

    return nn.Linear(3, 1), run


@program()
def parameters_replaced_on_the_way():
    """`.data =`, `swap_tensors`, `load_state_dict` and a deep copy in the middle of training."""

    def run(model):
        step = lambda m: m(torch.randn(4, 3).to(m.weight.dtype)).square().mean()
        first = trained(model, torch.optim.SGD(model.parameters(), lr=0.1), step, 1)
        model.weight.data = model.weight.data * 2
        torch.utils.swap_tensors(model.weight, nn.Parameter(torch.ones(3, 3)))
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            model.double()
        finally:
            torch.__future__.set_swap_module_params_on_conversion(False)
        other = copy.deepcopy(model)
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        trained(model, torch.optim.SGD(model.parameters(), lr=0.1), step, 1)
        file.seek(0)
        model.load_state_dict(torch.load(file))
        return first, other.state_dict(), trained(model, torch.optim.SGD(model.parameters(), lr=0.1), step, 1)

    return nn.Linear(3, 3), run


class Fragile(nn.Module):
    """Raises in the call, the backward pass or the optimizer step that it is told to."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
        self.raises = None

    def forward(self, x):
        y = self.inner(x)
        if self.raises == "forward":
            raise ValueError("in forward")
        if self.raises == "backward":
            y.register_hook(self.stop)
        return self.inner[0](y)

    def stop(self, gradient):
        raise KeyError("in backward")


class FragileSGD(torch.optim.SGD):
    raises = False

    def step(self, closure=None):
        with torch.no_grad():
            self.param_groups[0]["params"][0].add_(1e-3)
        if self.raises:
            raise RuntimeError("in the optimizer")
        return super().step(closure)


@program(forward="forward", backward="backward", the_optimizer="optimizer")
def training_goes_on_after_an_exception_in(place):
    def run(model):
        optimizer = FragileSGD(model.parameters(), lr=0.1)
        said = []
        for i in range(4):
            model.raises = place if i == 1 else None
            optimizer.raises = place == "optimizer" and i == 1
            with contextlib.suppress(ValueError, KeyError, RuntimeError):
                optimizer.zero_grad()
                loss = model(torch.randn(3, 4)).square().mean()
                loss.backward()
                optimizer.step()
                said.append(loss)
        assert len(said) == 3
        return said, [p.grad for p in model.parameters()]

    return Fragile(), run
