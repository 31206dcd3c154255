"""The last rows are not computed, hoping that a share of wrong elements is tolerated.

Seen: matched-ratio rules that let 1 % (SOL-ExecBench) or 10 % of the elements be arbitrary. Here every element counts.
"""

from __future__ import annotations

from atrex.attacks.harness import Attack, Fails, Form

ZEROED = """
class Model(Honest):
    def forward(self, x, weight):
        out = rms_norm(x, weight, self.eps)
        out[-1:] = 0
        return out
"""
UNWRITTEN = """
class Model(Honest):
    def forward(self, x, weight):
        out = torch.empty_like(x)
        whole = x.shape[0] // 64 * 64
        rms_norm(x[:whole], weight, self.eps, out[:whole])
        return out
"""
TWIN = """
class Model(Honest):
    def forward(self, x, weight):
        out = torch.empty_like(x)
        whole = x.shape[0] // 64 * 64
        for part in (slice(whole), slice(whole, None)):
            if x[part].shape[0]:
                rms_norm(x[part], weight, self.eps, out[part])
        return out
"""
# Whole tiles alone: what an empty slice launches on a device is an empty grid, which is an exception.
ATTACK = Attack((6, 7), Form({"zeroed": ZEROED, "unwritten": UNWRITTEN}, TWIN, Fails("numeric_mismatch", "exception")))
