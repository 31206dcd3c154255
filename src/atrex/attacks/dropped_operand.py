"""An operand left out, hoping that it is neutral: a weight of ones, a bias of zeros, a mask that is all true."""

from __future__ import annotations

from atrex.attacks.harness import Attack, Fails, Form

CHEAT = """
class Model(Honest):
    def forward(self, x, weight):
        return rms_norm(x, torch.ones_like(weight), self.eps)
"""
TWIN = """
class Model(Honest):
    def forward(self, x, weight=None):
        if weight is None:
            weight = torch.ones(x.shape[1], dtype=x.dtype, device=x.device)
        return rms_norm(x, weight, self.eps)
"""
ATTACK = Attack((4, 5), Form({"": CHEAT}, TWIN, Fails("numeric_mismatch")))
