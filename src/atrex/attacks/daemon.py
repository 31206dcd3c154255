"""A process that leaves its session and its parent, to go on when the unit has ended.

It ends by itself after 20 seconds. The unit may pass, but nothing of it may be left.
"""

from __future__ import annotations

from atrex.attacks.harness import Attack, Fails, Form, NoGain, either

NAME = "atrex-daemon"
CHEAT = f"""
import ctypes
import os
import signal
import time


def detach():
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    signal.alarm(20)
    ctypes.CDLL(None).prctl(15, b"{NAME}", 0, 0, 0)
    ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)
    try:
        time.sleep(20)
    finally:
        os._exit(0)


class Model(Honest):
    calls = 0

    def forward(self, x, weight):
        self.calls += 1
        if self.calls == 2:
            detach()
        return rms_norm(x, weight, self.eps)
"""
TWIN = """
import os


class Model(Honest):
    def __init__(self, eps):
        super().__init__(eps)
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        assert os.waitpid(pid, 0) == (pid, 0)
"""
ATTACK = Attack((21, 40), Form({"": CHEAT}, TWIN, either(NoGain(), Fails("exception", "integrity")), leaves=NAME))
