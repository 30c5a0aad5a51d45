"""Mixed precision: the scaler skips the one bad batch and training goes on, but evaluation is NaN for ever."""

import torch
import torch.nn as nn

GROUP = "c"
CAUSE = (
    "a float16 overflow before batch norm; the optimizer step is skipped, the update of running_mean and "
    "running_var is not"
)
REPORT = "pytorch/pytorch#88474"


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift, self.bn, self.out = nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 1)

    def forward(self, x):
        return self.out(torch.relu(self.bn(self.lift(x)))).squeeze(-1)


EXPECT = {"kind": "first-nonfinite", "what": "nan (made of inf)", "op": "aten.native_batch_norm.default",
          "module": "bn", "phase": "forward", "input_finite": False, "line": r"self\.bn\(self\.lift",
          "first_inf": {"op": "aten.addmm.default", "module": "lift", "phase": "forward", "input_finite": True,
                        "line": r"self\.lift\(x\)"},
          "step": 1, "stored_by": {"op": "aten.native_batch_norm.default", "module": "bn",
                                   "target": "bn.running_mean, bn.running_var"},
          "reaches": "buffers, every result in evaluation; parameters stay finite (the scaler skips the step)",
          "fix": "float16 overflow in lift: scale the data; running statistics are poisoned though the step is skipped"}


def build():
    torch.manual_seed(311)
    model = Tower()
    batches = [(torch.randn(6, 3), torch.randn(6)) for _ in range(4)]
    with torch.no_grad():
        model.lift.weight[0] *= 3
        batches[1][0][2] = 60000 * torch.sign(model.lift.weight[0])

    def run(m):
        opt = torch.optim.SGD(m.parameters(), lr=0.05)
        scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
        losses = []
        for x, y in batches:
            opt.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = (m(x) - y).float().pow(2).mean()
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            losses.append(loss.detach())
        m.eval()
        with torch.no_grad():
            return torch.stack(losses), m(batches[0][0])
    return model, run


if __name__ == "__main__":
    model, run = build()
    losses, result = run(model)
    print("losses", losses.tolist(), "evaluation", result.tolist(), "running_var", model.bn.running_var.tolist())
    print("parameters finite:", all(bool(p.isfinite().all()) for p in model.parameters()))
