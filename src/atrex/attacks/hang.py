"""A forward that never returns and ignores the signals that ask it to end."""

from __future__ import annotations

from atrex.attacks.harness import Attack, Fails, Form

CHEAT = """
import signal
import time


class Model(Honest):
    calls = 0

    def forward(self, x, weight):
        self.calls += 1
        if self.calls == 2:
            for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(one, signal.SIG_IGN)
            time.sleep(600)
        return rms_norm(x, weight, self.eps)
"""
TWIN = """
import signal
import time


class Model(Honest):
    def __init__(self, eps):
        super().__init__(eps)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(0.2)
"""
ATTACK = Attack((41,), Form({"": CHEAT}, TWIN, Fails("timeout")))
