"""A passing verdict printed, then a quick end of the process: at import, in the first call, or later.

Seen: SOL-ExecBench and pygpubench read the candidate's own standard output or a pipe that it can write to.
"""

from __future__ import annotations

from atrex.attacks.harness import Attack, Fails, Form

_FORGED = """
import json
import os


def forge():
    verdict = {"status": "passed", "stage": None, "category": None, "reason": None, "shortcut": None}
    print(json.dumps({"verdict": verdict, "performance": {"median_us": 0.01}}), "PASSED", flush=True)
    os._exit(0)
"""


def _at(call: int) -> str:
    return f"""{_FORGED}

class Model(Honest):
    calls = 0

    def forward(self, x, weight):
        self.calls += 1
        if self.calls == {call}:
            forge()
        return rms_norm(x, weight, self.eps)
"""


TWIN = """
import atexit
import json


class Model(Honest):
    def __init__(self, eps):
        super().__init__(eps)
        atexit.register(print, "done")
        print(json.dumps({"status": "starting"}), flush=True)
"""
ATTACK = Attack(
    (37, 41),
    Form({"at import": _FORGED + "\n\nforge()\n", "first call": _at(1), "timed call": _at(25)}, TWIN,
         Fails("exception")),
)  # fmt: skip
