"""Every shared operand overwritten in place, also those of other places, so that a later reference would agree.

The judge keeps its own copy of the operands, and expected values are computed from that.
"""

from __future__ import annotations

from atrex.attacks.harness import Attack, Fails, Form

CHEAT = """
import gc


class Model(Honest):
    def forward(self, x, weight):
        bench = next(one for one in gc.get_objects() if type(one).__name__ == "Bench")
        for place in bench.places:
            for operand in place.values():
                operand.zero_()
        return torch.zeros_like(x)
"""
TWIN = """
class Model(Honest):
    def forward(self, x, weight):
        self.where = x.data_ptr(), weight.data_ptr()
        return rms_norm(x, weight, self.eps)
"""
ATTACK = Attack((2, 39), Form({"": CHEAT}, TWIN, Fails("interface")))
