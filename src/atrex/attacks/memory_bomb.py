"""A hundred gigabytes asked for, and touched until something gives way.

The judge's limit is lowered to 3 GiB for this unit, and the candidate stops at 6 GiB, so that the machine is safe
either way. Right answers are given only if nothing stopped it. On a device all memory is taken, and in one form kept.
"""

from __future__ import annotations

from atrex.attacks.harness import Attack, Fails, Form

LIMIT, STOP = 3 << 30, 6 << 30
CHEAT = f"""
import time


class Model(Honest):
    calls, kept = 0, []

    def forward(self, x, weight):
        self.calls += 1
        if self.calls == 2:
            wanted, step = 100 << 30, 256 << 20
            for taken in range(0, wanted, step):
                if taken >= {STOP}:
                    break
                self.kept.append(torch.ones(step, dtype=torch.uint8))
            time.sleep(1.0)
        return rms_norm(x, weight, self.eps)
"""
TWIN = """
class Model(Honest):
    def __init__(self, eps):
        super().__init__(eps)
        self.workspace = torch.zeros(64 << 20, dtype=torch.uint8)
"""
DEVICE_CHEAT = """
class Model(Honest):
    calls, kept = 0, []

    def forward(self, x, weight):
        self.calls += 1
        if self.calls == 2:
            while True:
                self.kept.append(torch.ones(2 << 30, dtype=torch.uint8, device=x.device))
        return rms_norm(x, weight, self.eps)
"""
DEVICE_HOG = """
class Model(Honest):
    calls, kept = 0, []

    def forward(self, x, weight):
        self.calls += 1
        out = rms_norm(x, weight, self.eps)
        if self.calls == 2:
            step = 2 << 30
            while step >= 1 << 20:
                try:
                    self.kept.append(torch.ones(step, dtype=torch.uint8, device=x.device))
                except torch.OutOfMemoryError:
                    step //= 2
        return out
"""
DEVICE_TWIN = """
class Model(Honest):
    room = None

    def forward(self, x, weight):
        if self.room is None:
            self.room = torch.empty(256 << 20, dtype=torch.uint8, device=x.device)
        return rms_norm(x, weight, self.eps)
"""
ATTACK = Attack(
    (41,),
    Form({"": CHEAT}, TWIN, Fails("exception", "timeout_or_oom"), limits={"memory": LIMIT}),
    Form(
        {"device": DEVICE_CHEAT, "device, kept": DEVICE_HOG},
        DEVICE_TWIN,
        Fails("exception", "timeout_or_oom"),
        devices=("cuda",),
    ),
)
