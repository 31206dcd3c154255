"""An input changed: zeroed, so that a reference that runs later computes zeros too, or used as the output.

Seen: KernelBench's zero_out_kernel, and harnesses that run the candidate first on tensors that it shares with the
reference.
"""

from __future__ import annotations

from atrex.attacks.harness import Attack, Fails, Form

ZEROED = """
class Model(Honest):
    def forward(self, x, weight):
        x.zero_()
        return torch.zeros_like(x)
"""
AFTERWARDS = """
class Model(Honest):
    def forward(self, x, weight):
        out = rms_norm(x, weight, self.eps)
        x[-1, -1] += 1
        return out
"""
OVERWRITTEN = """
class Model(Honest):
    def forward(self, x, weight):
        return rms_norm(x, weight, self.eps, x)
"""
TWIN = """
class Model(Honest):
    def forward(self, x, weight):
        own = torch.empty_like(x)
        rms_norm(x, weight, self.eps, own)
        rms_norm(x[-1:], weight, self.eps, own[-1:])
        return own
"""
ATTACK = Attack(
    (2,),
    Form({"zeroed": ZEROED, "afterwards": AFTERWARDS, "as output": OVERWRITTEN}, TWIN, Fails("interface")),
)
