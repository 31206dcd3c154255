"""Hundreds of processes, in sessions of their own. The number is capped and each ends by itself after 20 seconds.

The judge's limit is lowered to 64 for this unit. Right answers are given only if all of them could be started. The
twin runs a handful of processes.
"""

from __future__ import annotations

from atrex.attacks.harness import Attack, Fails, Form

PROCESSES, ALLOWED = 300, 64
NAME = "atrex-bomb"
CHEAT = f"""
import ctypes
import os
import signal
import time


def sleeper():
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        os.setsid()
        ctypes.CDLL(None).prctl(15, b"{NAME}", 0, 0, 0)
        try:
            time.sleep(20)
        finally:
            os._exit(0)
    return pid


class Model(Honest):
    calls = 0

    def forward(self, x, weight):
        self.calls += 1
        if self.calls == 2:
            self.children = [sleeper() for _ in range({PROCESSES})]
            time.sleep(1.0)
        return rms_norm(x, weight, self.eps)
"""
TWIN = """
import subprocess


class Model(Honest):
    def __init__(self, eps):
        super().__init__(eps)
        running = [subprocess.Popen(["sleep", "0.1"]) for _ in range(8)]
        assert all(child.wait() == 0 for child in running)
"""
ATTACK = Attack(
    (21, 41), Form({"": CHEAT}, TWIN, Fails("exception", "timeout_or_oom"), leaves=NAME, limits={"processes": ALLOWED})
)
