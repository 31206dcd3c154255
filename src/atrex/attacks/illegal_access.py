"""A store far outside every allocation: this unit fails, and the next candidate finds a sound device."""

from __future__ import annotations

from atrex.attacks.harness import Attack, Fails, Form

ON_DEVICE = """
@triton.jit
def crash_kernel(p):
    tl.store(p + (1 << 40) + tl.arange(0, 32), 1.0)


class Model(Honest):
    calls = 0

    def forward(self, x, weight):
        self.calls += 1
        if self.calls == 3:
            crash_kernel[(1,)](x)
        return rms_norm(x, weight, self.eps)
"""
ON_HOST = """
class Model(Honest):
    calls = 0

    def forward(self, x, weight):
        self.calls += 1
        if self.calls == 3:
            LIBRARY.rms_norm(x.data_ptr(), weight.data_ptr(), x.data_ptr() + (1 << 44), *x.shape, self.eps)
        return rms_norm(x, weight, self.eps)
"""
TWIN = """
class Model(Honest):
    def forward(self, x, weight):
        return rms_norm(x, weight, self.eps)
"""
ATTACK = Attack(
    (40, 41),
    Form({"": ON_DEVICE}, TWIN, Fails("exception"), devices=("cuda",)),
    Form({"": ON_HOST}, TWIN, Fails("exception"), devices=("cpu",)),
)
