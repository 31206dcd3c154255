"""An input handed back as the output, as it is or as a copy.

Seen: checkers that compare an in-place operator's result with the argument that it was called with accept the identity.
"""

from __future__ import annotations

from atrex.attacks.harness import Attack, Fails, Form

ALIAS = """
class Model(Honest):
    def forward(self, x, weight):
        return x
"""
COPY = """
class Model(Honest):
    def forward(self, x, weight):
        return x.clone()
"""
TWIN = """
class Model(Honest):
    def forward(self, x, weight):
        return rms_norm(x.contiguous(), weight.contiguous(), self.eps)
"""
ATTACK = Attack((3, 10), Form({"alias": ALIAS, "copy": COPY}, TWIN, Fails("interface", "numeric_mismatch")))
