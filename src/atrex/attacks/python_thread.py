"""A Python thread that fills the output in after the call has returned."""

from __future__ import annotations

from atrex.attacks.harness import Attack, Fails, Form

CHEAT = """
import threading
import time


class Model(Honest):
    calls = 0

    def forward(self, x, weight):
        self.calls += 1
        if self.calls < 16:
            return rms_norm(x, weight, self.eps)
        out = torch.empty_like(x)

        def later():
            time.sleep(0.002)
            rms_norm(x, weight, self.eps, out)

        threading.Thread(target=later, daemon=True).start()
        return out
"""
TWIN = """
import threading


class Model(Honest):
    def forward(self, x, weight):
        out = torch.empty_like(x)
        worker = threading.Thread(target=rms_norm, args=(x, weight, self.eps, out))
        worker.start()
        worker.join()
        return out
"""
ATTACK = Attack((21,), Form({"": CHEAT}, TWIN, Fails("integrity")))
