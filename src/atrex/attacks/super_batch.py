"""Work put off: calls hand back empty buffers, and every fifth one fills them all in.

Seen: the first of 15 calls launching the work of all of them (NVFP4 group GEMM, kernelboard news 2026-03-09).
"""

from __future__ import annotations

from atrex.attacks.harness import Attack, Fails, Form

CHEAT = """
class Model(Honest):
    waiting, calls = [], 0

    def forward(self, x, weight):
        self.calls += 1
        if self.calls < 16:
            return rms_norm(x, weight, self.eps)
        self.waiting.append((x, weight, torch.empty_like(x)))
        out = self.waiting[-1][2]
        if self.calls % 5 == 0:
            for one in self.waiting:
                rms_norm(*one[:2], self.eps, one[2])
            self.waiting.clear()
        return out
"""
TWIN = """
class Model(Honest):
    def forward(self, x, weight):
        out = torch.empty_like(x)
        waiting = [slice(i, i + 512) for i in range(0, x.shape[0], 512)]
        for part in waiting:
            rms_norm(x[part], weight, self.eps, out[part])
        return out
"""
ATTACK = Attack((23,), Form({"": CHEAT}, TWIN, Fails("integrity")))
