"""Zeros or a constant, hoping that the answer is smaller than the tolerance.

Seen: an absolute tolerance of 1e-2 accepts zeros for a softmax whose largest value is 4e-6 (KernelBench issue 165), and
constants for other operators. Here tolerances scale with a row of the expected output.
"""

from __future__ import annotations

from atrex.attacks.harness import Attack, Fails, Form

ZEROS = """
class Model(Honest):
    def forward(self, x, weight):
        return torch.zeros_like(x)
"""
CONSTANT = """
class Model(Honest):
    def forward(self, x, weight):
        return torch.full_like(x, 0.01)
"""
MEAN = """
class Model(Honest):
    def forward(self, x, weight):
        return weight.expand_as(x).contiguous()
"""
TWIN = """
class Model(Honest):
    filled = False

    def forward(self, x, weight):
        if not self.filled and not x.any():
            self.filled = True
            return torch.zeros_like(x)
        self.filled = True
        return rms_norm(x, weight, self.eps)
"""
ATTACK = Attack(
    (3, 6, 7),
    Form({"zeros": ZEROS, "constant": CONSTANT, "weight alone": MEAN}, TWIN, Fails("numeric_mismatch")),
)
