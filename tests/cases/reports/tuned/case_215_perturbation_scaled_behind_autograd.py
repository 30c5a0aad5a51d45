"""A generator of adversarial perturbations scales its output to the budget through `.data`: the gradient is wrong."""

import torch
import torch.nn.functional as F
from torch import nn

GROUP = "e"
CAUSE = "writing through .data changes the tanh result that tanh saved, without a version bump and without a node"
REPORT = "OmidPoursaeed/Generative_Adversarial_Perturbations#4"


class Perturb(nn.Module):
    def __init__(self, width=4, budget=0.1):
        super().__init__()
        self.net, self.budget = nn.Linear(width, width), budget

    def forward(self, image):
        delta = torch.tanh(self.net(image))
        for i in range(len(delta)):
            delta.data[i] *= self.budget / delta.data[i].abs().max()
        return image + delta


class Attack(nn.Module):
    def __init__(self):
        super().__init__()
        self.perturb, self.judge = Perturb(), nn.Linear(4, 3)

    def forward(self, image, label):
        return -F.cross_entropy(self.judge(self.perturb(image)), label)


EXPECT = {"kind": "inplace-after-save", "raises": None, "silent": True, "op": "aten.mul_.Tensor",
          "module": "perturb", "phase": "forward", "line": r"delta\.data\[i\] \*= self\.budget",
          "victim_op": "aten.tanh.default", "victim_module": "perturb",
          "victim_line": r"delta = torch\.tanh\(self\.net\(image\)\)", "target": "delta, through .data", "times": 2,
          "note": "`delta.data[i] *= s` dispatches mul_ on the row and then copy_ of the row into itself"}


def build():
    torch.manual_seed(215)
    model, image, label = Attack(), torch.randn(2, 4), torch.tensor([0, 2])

    def run(m):
        m.zero_grad()
        m(image, label).backward()
        return m.perturb.net.bias.grad.clone()
    return model, run


if __name__ == "__main__":
    model, run = build()
    got = run(model)
    torch.manual_seed(215)
    model, image, label = Attack(), torch.randn(2, 4), torch.tensor([0, 2])
    part = torch.tanh(model.perturb.net(image))
    part = part * (model.perturb.budget / part.detach().abs().amax(1, keepdim=True))
    loss = -F.cross_entropy(model.judge(image + part), label)
    (true,) = torch.autograd.grad(loss, model.perturb.net.bias)
    print("gradient of the generator's bias:", [round(v, 4) for v in got.tolist()])
    print("with the scale as a recorded factor:", [round(v, 4) for v in true.tolist()])
