"""Right for the first calls, which seem to be the checks, and cheap afterwards.

Seen: SOL-ExecBench's ten checked rounds; a layernorm that goes wrong after ten calls (llm.c PR 852). The window is the
hardest: right again before the last call, so that only the clock or a lucky sample sees it.
"""

from __future__ import annotations

from atrex.attacks.harness import Attack, Fails, Form


def _after(first: int, last: int = 1 << 30) -> str:
    return f"""
class Model(Honest):
    kept, calls = None, 0

    def forward(self, x, weight):
        self.calls += 1
        if {first} < self.calls <= {last} and self.kept is not None and self.kept.shape == x.shape:
            return torch.empty_like(x).copy_(self.kept)
        out = rms_norm(x, weight, self.eps)
        self.kept = out.clone()
        return out
"""


TWIN = """
class Model(Honest):
    calls = 0

    def forward(self, x, weight):
        self.calls += 1
        if self.calls <= 10:
            out = torch.empty_like(x)
            return rms_norm(x, weight, self.eps, out)
        return rms_norm(x, weight, self.eps)
"""
ATTACK = Attack(
    (26, 42),
    Form(
        {"10": _after(10), "50": _after(50), "60": _after(60), "window 20-80": _after(20, 80)},
        TWIN, Fails("integrity"), shapes={"cpu": "28", "cuda": "13"},
    ),
)  # fmt: skip
