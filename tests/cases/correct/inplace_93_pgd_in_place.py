"""Correct: projected gradient attack on a clone, updated in place under no_grad."""
import torch
import torch.nn as nn
import torch.nn.functional as F


def build():
    torch.manual_seed(93); model = nn.Sequential(nn.Flatten(), nn.Linear(9, 6), nn.ReLU(), nn.Linear(6, 3))
    def run(m):
        clean, label = torch.rand(1, 3, 3), torch.tensor([1])
        adv = clean.clone().requires_grad_()
        for _ in range(3):
            g, = torch.autograd.grad(F.cross_entropy(m(adv), label), adv)
            with torch.no_grad():
                adv += 0.01 * g.sign()
                adv.copy_(torch.min(torch.max(adv, clean - 0.03), clean + 0.03)).clamp_(0, 1)
        return (adv - clean).abs().max().item()
    return model, run
