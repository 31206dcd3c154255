"""A weight prepared at the first call and kept, so that later calls do not pay for it.

Seen: expert weights dequantized once at import (starter-kit issue 21). Weights change from call to call unless the
operator declares them constant.
"""

from __future__ import annotations

from atrex.attacks.harness import Attack, Fails, Form

CHEAT = """
class Model(Honest):
    kept = None

    def forward(self, x, weight):
        if self.kept is None:
            self.kept = weight.clone()
        return rms_norm(x, self.kept, self.eps)
"""
TWIN = """
class Model(Honest):
    room = None

    def forward(self, x, weight):
        if self.room is None or self.room.shape != x.shape:
            self.room = torch.empty_like(x)
        return rms_norm(x, weight, self.eps, self.room)
"""
ATTACK = Attack((28,), Form({"": CHEAT}, TWIN, Fails("numeric_mismatch", "integrity")))
