"""Class indices come from enumerating a set of strings, whose order depends on PYTHONHASHSEED."""

import torch
import torch.nn as nn
import torch.nn.functional as F

GROUP = "d"
CAUSE = "seeds are fixed, logits of step 1 agree bit for bit, but the integer targets differ between processes"


NAMES = ["theory", "rule", "case", "neural", "theory", "case"]
ORDERS = {
    "run1": ["case", "neural", "rule", "theory"],
    "run2": ["theory", "case", "neural", "rule"],
}  # two possible set orders

EXPECT = {
    "kind": "trace-diff",
    "variants": ["run1", "run2"],
    "what": "value",
    "first_diff_op": "aten.lift_fresh.default",
    "module": None,
    "line": r"y = torch\.tensor",
    "first_float_diff_op": "aten.nll_loss_forward.default",
    "note": "the first difference is an INTEGER tensor; torch.tensor(list) itself is no op, the values enter at lift_fresh",
}
DATA = {}


def build():
    torch.manual_seed(39)
    model = nn.Module()
    model.net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4))
    DATA["x"] = torch.randn(6, 3)

    def run(m):
        return VARIANTS["run1"](m)

    return model, run


def _call(order):
    def go(m):
        torch.manual_seed(0)
        index = {c: i for i, c in enumerate(order)}
        y = torch.tensor([index[n] for n in NAMES])
        loss = F.cross_entropy(m.net(DATA["x"]), y)
        loss.backward()
        return loss

    return go


VARIANTS = {k: _call(v) for k, v in ORDERS.items()}
