"""Answers kept for inputs that well-known seeds draw, recognized by a few of their elements.

Seen: seeds 42, 1024 and 200 are public, and the generator is shared with the candidate (KernelBench, SOL-ExecBench).
"""

from __future__ import annotations

from atrex.attacks.harness import Attack, Fails, Form

CHEAT = """
class Model(Honest):
    def forward(self, x, weight):
        for seed in (0, 1, 42, 200, 1024, torch.initial_seed() % (1 << 31)):
            torch.manual_seed(seed)
            drawn = torch.randn(x.shape).to(x.dtype).to(x.device)
            if torch.equal(drawn[0, :4], x[0, :4]):
                return rms_norm(drawn, weight, self.eps)
        return torch.zeros_like(x)
"""
TWIN = """
class Model(Honest):
    def __init__(self, eps):
        super().__init__(eps)
        torch.manual_seed(42)
"""
ATTACK = Attack((14,), Form({"": CHEAT}, TWIN, Fails("numeric_mismatch")))
