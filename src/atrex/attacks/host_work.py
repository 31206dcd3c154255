"""The answer computed on the host and copied to the device: a span that starts at the first kernel sees only the copy.

Here the host's time lies between the events, and no kernel of the DSL ran. The twin waits for the device itself.
"""

from __future__ import annotations

from atrex.attacks.harness import Attack, Form, Shortcut

CHEAT = """
class Model(Honest):
    def forward(self, x, weight):
        wide = x.cpu().float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * scale * weight.cpu().float()).to(x.dtype).to(x.device)
"""
TWIN = """
class Model(Honest):
    def forward(self, x, weight):
        out = rms_norm(x, weight, self.eps)
        torch.cuda.synchronize()
        return out
"""
ATTACK = Attack((32,), Form({"": CHEAT}, TWIN, Shortcut("torch"), shapes={"cuda": "5"}, devices=("cuda",)))
