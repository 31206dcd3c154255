"""Memory kept by shape: honest as a workspace that every call fills, a replay when the filling is skipped."""

from __future__ import annotations

from atrex.attacks.harness import Attack, Fails, Form

CHEAT = """
class Model(Honest):
    kept, calls = {}, 0

    def forward(self, x, weight):
        self.calls += 1
        key = tuple(x.shape)
        if self.calls < 20 or key not in self.kept:
            self.kept[key] = rms_norm(x, weight, self.eps).clone()
        return self.kept[key].clone()
"""
TWIN = """
class Model(Honest):
    kept = {}

    def forward(self, x, weight):
        key = tuple(x.shape)
        if key not in self.kept:
            self.kept[key] = torch.empty_like(x)
        return rms_norm(x, weight, self.eps, self.kept[key])
"""
ATTACK = Attack((24, 26), Form({"": CHEAT}, TWIN, Fails("integrity")))
