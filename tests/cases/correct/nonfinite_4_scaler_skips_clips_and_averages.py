"""Mixed precision in order: the scaler overflows at first, unscales, clips, skips, and an average of the weights is kept."""
import copy

import torch
import torch.nn as nn


def build():
    torch.manual_seed(4); m = nn.Sequential(nn.Linear(6, 32), nn.GELU(), nn.Linear(32, 1)); x, y = torch.randn(16, 6), torch.randn(16, 1) * 30
    def run(m):
        opt = torch.optim.AdamW(m.parameters(), lr=1e-3); sc = torch.amp.GradScaler("cpu", init_scale=2.0 ** 18, growth_interval=4); ema = copy.deepcopy(m)
        for _ in range(12):
            opt.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = (m(x) - y).pow(2).mean()
            sc.scale(loss).backward(); sc.unscale_(opt); nn.utils.clip_grad_norm_(m.parameters(), 1.0)
            sc.step(opt); sc.update()
            with torch.no_grad():
                torch._foreach_lerp_(list(ema.parameters()), list(m.parameters()), 0.1)
    return m, run
