"""A crash of the whole process, hoping that a unit without a result is left out of the average."""

from __future__ import annotations

from atrex.attacks.harness import Attack, Fails, Form

CHEAT = """
import ctypes


class Model(Honest):
    calls = 0

    def forward(self, x, weight):
        self.calls += 1
        if self.calls == 3:
            ctypes.string_at(8)
        return rms_norm(x, weight, self.eps)
"""
TWIN = """
import faulthandler


class Model(Honest):
    def __init__(self, eps):
        super().__init__(eps)
        faulthandler.enable()
"""
ATTACK = Attack((40, 41), Form({"": CHEAT}, TWIN, Fails("exception")))
