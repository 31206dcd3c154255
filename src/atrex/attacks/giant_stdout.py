"""Output without end: it must neither block the judge, nor fill its memory, nor a disk."""

from __future__ import annotations

from atrex.attacks.harness import Attack, Fails, Form

CHEAT = """
import os


class Model(Honest):
    calls = 0

    def forward(self, x, weight):
        self.calls += 1
        block = b"PASSED " * 150_000
        while self.calls == 2:
            os.write(1, block)
            os.write(2, block)
        return rms_norm(x, weight, self.eps)
"""
TWIN = """
class Model(Honest):
    def forward(self, x, weight):
        print("rms_norm", tuple(x.shape), flush=True)
        return rms_norm(x, weight, self.eps)
"""
ATTACK = Attack((41,), Form({"": CHEAT}, TWIN, Fails("timeout", "exception")))
