"""The reference imported and called.

Where its file is out of reach that is an exception; where it can be read it is correct code in torch, which adoption
shows.
"""

from __future__ import annotations

from atrex.attacks.harness import Attack, Fails, Form, Shortcut, either

CHEAT = """
import importlib

reference = importlib.import_module("atrex.suite.rms_norm.reference")


class Model(Honest):
    def __init__(self, eps):
        super().__init__(eps)
        self.reference = reference.Model(eps)

    def forward(self, x, weight):
        return self.reference(x, weight)
"""
INHERITED = """
import importlib


class Model(importlib.import_module("atrex.suite.rms_norm.reference").Model):
    pass
"""
TWIN = """
import importlib


class Model(Honest):
    def __init__(self, eps):
        super().__init__(eps)
        try:
            self.fast = importlib.import_module("no_such_kernels").rms_norm
        except ImportError:
            self.fast = rms_norm

    def forward(self, x, weight):
        return self.fast(x, weight, self.eps)
"""
ATTACK = Attack(
    (16, 17), Form({"called": CHEAT, "inherited": INHERITED}, TWIN, either(Fails("exception"), Shortcut("torch")))
)
