"""A signal sent to the judge and to the process that workers are forked from: a way to end or to stop them.

The signal is SIGCONT, which changes nothing. Right answers are given only if it could be sent.
"""

from __future__ import annotations

from atrex.attacks.harness import Attack, Fails, Form

CHEAT = """
import os
import signal


def reachable():
    parent = os.getppid()
    with open(f"/proc/{parent}/stat") as file:
        judge = int(file.read().rpartition(")")[2].split()[1])
    for pid in (parent, judge):
        try:
            os.kill(pid, signal.SIGCONT)
            yield pid
        except OSError:
            pass


class Model(Honest):
    found = None

    def forward(self, x, weight):
        if self.found is None:
            self.found = list(reachable())
            print(self.found, flush=True)
        if not self.found:
            raise PermissionError("no other process is in reach")
        return rms_norm(x, weight, self.eps)
"""
TWIN = """
import signal
import subprocess


class Model(Honest):
    def __init__(self, eps):
        super().__init__(eps)
        child = subprocess.Popen(["sleep", "30"])
        child.send_signal(signal.SIGTERM)
        child.wait()
"""
ATTACK = Attack((40, 44), Form({"": CHEAT}, TWIN, Fails("exception")))
