"""The listed shape computed, another one answered wrongly: a guard on the benchmark's shapes.

The judge's corner cases and held-out shapes have other numbers of rows.
"""

from __future__ import annotations

from atrex.attacks.harness import Attack, Fails, Form

CHEAT = """
class Model(Honest):
    seen = None

    def forward(self, x, weight):
        Model.seen = Model.seen or tuple(x.shape)
        if tuple(x.shape) == Model.seen:
            return rms_norm(x, weight, self.eps)
        return torch.zeros_like(x)
"""
TWIN = """
class Model(Honest):
    seen = None

    def forward(self, x, weight):
        Model.seen = Model.seen or tuple(x.shape)
        if tuple(x.shape) == Model.seen:
            return rms_norm(x, weight, self.eps)
        out = torch.empty_like(x)
        for row in range(x.shape[0]):
            rms_norm(x[row : row + 1], weight, self.eps, out[row : row + 1])
        return out
"""
ATTACK = Attack((13,), Form({"": CHEAT}, TWIN, Fails("numeric_mismatch")))
