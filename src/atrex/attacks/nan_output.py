"""NaN or infinity everywhere, hoping that a comparison with something that is not finite matches anything.

Seen: checkers that skip elements where either side is not finite, or pass when the reference is NaN somewhere.
topk_filter is right to put minus infinity in most places, and must not be let off elsewhere.
"""

from __future__ import annotations

from atrex.attacks.harness import Attack, Fails, Form

NAN = """
class Model(Honest):
    def forward(self, x, weight):
        return torch.full_like(x, float("nan"))
"""
TWIN = """
class Model(Honest):
    def forward(self, x, weight):
        return rms_norm(x, weight, self.eps, torch.full_like(x, float("nan")))
"""
MASKED = """
import torch


class Model(torch.nn.Module):
    def __init__(self, top_k=50):
        super().__init__()

    def forward(self, logits):
        return torch.full_like(logits, float("-inf"))
"""
FILTERED = """
import torch


class Model(torch.nn.Module):
    def __init__(self, top_k=50):
        super().__init__()
        self.top_k = top_k

    def forward(self, logits):
        values = logits.topk(min(self.top_k, logits.shape[1])).values
        return torch.where(logits >= values[:, -1:], logits, float("-inf"))
"""
ATTACK = Attack(
    (8,),
    Form({"NaN": NAN}, TWIN, Fails("numeric_mismatch"), dominant=False),
    Form(
        {"masked": MASKED}, FILTERED, Fails("numeric_mismatch"), "topk_filter", {"cpu": "3", "cuda": "3"},
        base=None, dominant=False,
    ),
)  # fmt: skip
