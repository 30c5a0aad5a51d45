"""float16 autocast, far too large a first loss scale: steps are skipped at first, then training goes on."""
import torch
import torch.nn as nn

EXPECT = {"correct": True}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(6, 16), nn.LayerNorm(16), nn.Linear(16, 1)

    def forward(self, x):
        return self.b(torch.relu(self.norm(self.a(x)))).squeeze(-1)


def build():
    torch.manual_seed(344)
    model = Net()
    x, y = torch.randn(12, 6), torch.randn(12) * 5

    def run(m):
        opt = torch.optim.AdamW(m.parameters(), lr=1e-2)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 24)
        losses, skipped = [], 0
        for _ in range(16):
            opt.zero_grad(set_to_none=True)
            with torch.autocast("cpu", dtype=torch.float16):
                loss = nn.functional.mse_loss(m(x).float(), y)
            scaler.scale(loss).backward()
            before = scaler.get_scale()
            scaler.step(opt)
            scaler.update()
            skipped += scaler.get_scale() < before
            losses.append(loss.detach())
        return torch.stack(losses), skipped
    return model, run


if __name__ == "__main__":
    model, run = build()
    losses, skipped = run(model)
    assert losses.isfinite().all() and 0 < skipped < 16 and losses[-1] < losses[0]
    assert all(p.isfinite().all() for p in model.parameters())
