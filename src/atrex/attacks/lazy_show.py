"""Nothing computed while the clock runs, everything when the judge asks for the outputs: the harness taken over.

The call looks up the stack whether it is timed. If so it hands back an empty buffer, and fills it later: when the
worker is about to copy outputs for the judge (`copied`: from copies of the operands), or when it takes its own
fingerprint, right after the clock has stopped. Values are then right, and the judge's clock agrees with the worker's.
"""

from __future__ import annotations

from atrex.attacks.harness import Attack, Fails, Form

_CHEAT = """
import gc
import sys

import atrex.evaluate.worker as harness

TODO = []


def finish():
    while TODO:
        rms_norm(*TODO.pop())


class Model(Honest):
    bench = None

    def forward(self, x, weight):
        callers, frame = set(), sys._getframe()
        while frame:
            callers.add(frame.f_code.co_name)
            frame = frame.f_back
        if not callers & {"timed", "batch"} or "_adopt" in callers:
            return rms_norm(x, weight, self.eps)
        out = torch.empty_like(x)
        TODO[:] = [(x, weight, self.eps, out)]
        self.arrange()
        return out

    def arrange(self):
        pass
"""
SHOWN = (
    _CHEAT
    + """

harness.fingerprint = lambda outputs: torch.zeros(1, dtype=torch.int64)


class Mailbox(dict):
    def items(self):
        finish()
        return super().items()


def arrange(self):
    self.bench = self.bench or next(one for one in gc.get_objects() if type(one).__name__ == "Bench")
    if not isinstance(self.bench.mailbox, Mailbox):
        self.bench.mailbox = Mailbox(self.bench.mailbox)


Model.arrange = arrange
"""
)
COPIED = SHOWN.replace("TODO[:] = [(x, weight,", "TODO[:] = [(x.clone(), weight.clone(),")
FINGERPRINTED = (
    _CHEAT
    + """

real = harness.fingerprint


def fingerprint(outputs):
    finish()
    return real(outputs)


harness.fingerprint = fingerprint
"""
)
TWIN = """
import sys


class Model(Honest):
    def forward(self, x, weight):
        self.caller = sys._getframe(1).f_code.co_name
        return rms_norm(x, weight, self.eps)
"""
ATTACK = Attack(
    (22, 23, 26, 38),
    Form(
        {"shown": SHOWN, "copied": COPIED, "fingerprinted": FINGERPRINTED},
        TWIN,
        Fails("integrity"),
        shapes={"cpu": "32", "cuda": "36"},
    ),
)
