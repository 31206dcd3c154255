"""Nothing computed while the clock runs, everything when the judge asks for the outputs: the harness taken over.

The call looks up the stack whether it is timed. If so it hands back an empty buffer, and fills it when the worker is
about to copy outputs for the judge; the worker's own fingerprints are replaced by a constant. Values are then right
and the judge's clock agrees with the worker's. `copied` also keeps copies of the operands for later.
"""

from __future__ import annotations

from atrex.attacks.harness import Attack, Fails, Form


def _cheat(kept: str) -> str:
    return f"""
import gc
import sys

import atrex.evaluate.worker as harness

harness.fingerprint = lambda outputs: torch.zeros(1, dtype=torch.int64)
TODO = []


class Mailbox(dict):
    def items(self):
        while TODO:
            rms_norm(*TODO.pop())
        return super().items()


class Model(Honest):
    bench = None

    def forward(self, x, weight):
        self.bench = self.bench or next(one for one in gc.get_objects() if type(one).__name__ == "Bench")
        callers, frame = set(), sys._getframe()
        while frame:
            callers.add(frame.f_code.co_name)
            frame = frame.f_back
        if not callers & {{"timed", "batch"}} or "_adopt" in callers:
            return rms_norm(x, weight, self.eps)
        out = torch.empty_like(x)
        TODO[:] = [({kept}, self.eps, out)]
        if not isinstance(self.bench.mailbox, Mailbox):
            self.bench.mailbox = Mailbox(self.bench.mailbox)
        return out
"""


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
        {"": _cheat("x, weight"), "copied": _cheat("x.clone(), weight.clone()")},
        TWIN,
        Fails("integrity"),
        shapes={"cpu": "32", "cuda": "36"},
    ),
)
