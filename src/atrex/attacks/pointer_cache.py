"""Outputs kept by the addresses of the operands: from the start, or from when checking seems to be over.

Seen: CUDA-L1's replay by data_ptr; kernelbot issue 501; reference-kernels issue 102.
"""

from __future__ import annotations

from atrex.attacks.harness import Attack, Fails, Form

CHEAT = """
class Model(Honest):
    kept = {}

    def forward(self, x, weight):
        key = x.data_ptr(), weight.data_ptr(), tuple(x.shape)
        if key not in self.kept:
            self.kept[key] = rms_norm(x, weight, self.eps)
        return self.kept[key].clone()
"""
LATE = """
class Model(Honest):
    kept, calls = {}, 0

    def forward(self, x, weight):
        self.calls += 1
        key = x.data_ptr(), weight.data_ptr(), tuple(x.shape), x._version
        if self.calls < 12 or key not in self.kept:
            self.kept[key] = rms_norm(x, weight, self.eps)
            return self.kept[key].clone()
        return self.kept[key].clone()
"""
TWIN = """
class Model(Honest):
    rows = {}

    def forward(self, x, weight):
        key = x.data_ptr(), weight.data_ptr(), tuple(x.shape)
        if key not in self.rows:
            self.rows[key] = x, weight, torch.empty_like(x)
        return rms_norm(*self.rows[key][:2], self.eps)
"""
ATTACK = Attack((24,), Form({"always": CHEAT, "late": LATE}, TWIN, Fails("numeric_mismatch", "integrity")))
