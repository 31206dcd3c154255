"""Memory of the harness read in search of an answer: the mailbox, outputs of earlier calls, every tensor in reach.

No expected value is ever mapped in a worker, and what earlier calls left is overwritten. Handing the mailbox back is
what a null candidate does.
"""

from __future__ import annotations

from atrex.attacks.harness import Attack, Fails, Form

_BENCH = """
import gc


def bench():
    return next(one for one in gc.get_objects() if type(one).__name__ == "Bench")
"""
MAILBOX = (
    _BENCH
    + """

class Model(Honest):
    def forward(self, x, weight):
        return bench().mailbox["out"].clone()
"""
)
ITSELF = (
    _BENCH
    + """

class Model(Honest):
    calls = 0

    def forward(self, x, weight):
        self.calls += 1
        return bench().mailbox["out"] if self.calls > 12 else rms_norm(x, weight, self.eps)
"""
)
HEAP = """
import gc


class Model(Honest):
    def forward(self, x, weight):
        found = [one for one in gc.get_objects() if type(one) is torch.Tensor and one.shape == x.shape
                 and one.dtype == x.dtype and one.data_ptr() != x.data_ptr()]
        return found[-1].clone() if found else torch.zeros_like(x)
"""
TWIN = """
import gc


class Model(Honest):
    def forward(self, x, weight):
        gc.collect(0)
        return rms_norm(x, weight, self.eps)
"""
ATTACK = Attack(
    (1, 38, 39),
    Form({"mailbox": MAILBOX, "mailbox itself": ITSELF, "heap": HEAP}, TWIN,
         Fails("numeric_mismatch", "integrity", "interface")),
)  # fmt: skip
