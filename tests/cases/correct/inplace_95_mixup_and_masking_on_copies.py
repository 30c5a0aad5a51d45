"""Correct: mixup and token masking on copies; labels made from a clone and then filled in place."""
import torch
import torch.nn as nn
import torch.nn.functional as F


def build():
    torch.manual_seed(95); model = nn.Sequential(nn.Embedding(9, 6), nn.Linear(6, 9))
    def run(m):
        ids = torch.randint(1, 8, (4, 6)); out = []
        for epoch in range(2):
            labels, mask = ids.clone(), torch.rand(4, 6) < 0.4
            labels[~mask] = -100
            inputs = ids.clone(); inputs[mask] = 8
            m.zero_grad(); loss = F.cross_entropy(m(inputs).flatten(0, 1), labels.flatten()); loss.backward(); out.append(loss.item())
        return out, ids.max().item()
    return model, run
