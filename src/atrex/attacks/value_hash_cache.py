"""Outputs kept by a hash of sampled values: a stale answer wherever a change misses the sample.

Seen: MoE submissions keyed on a fingerprint of a few elements (starter-kit issue 21). The twin compares every byte.
"""

from __future__ import annotations

from atrex.attacks.harness import Attack, Fails, Form

SAMPLED = """
class Model(Honest):
    kept = {}

    def forward(self, x, weight):
        key = tuple(x.shape), tuple(x.flatten()[:: max(1, x.numel() // 16)].tolist())
        if key not in self.kept:
            self.kept = {key: rms_norm(x, weight, self.eps)}
        return self.kept[key].clone()
"""
ROWS = """
class Model(Honest):
    kept = {}

    def forward(self, x, weight):
        key = tuple(x.shape), float(x[0].double().sum())
        if key not in self.kept:
            self.kept = {key: rms_norm(x, weight, self.eps)}
        return self.kept[key].clone()
"""
TWIN = """
class Model(Honest):
    kept = None

    def forward(self, x, weight):
        if self.kept is not None and x.shape == self.kept[0].shape:
            if torch.equal(x, self.kept[0]) and torch.equal(weight, self.kept[1]):
                return self.kept[2].clone()
        out = rms_norm(x, weight, self.eps)
        self.kept = x.clone(), weight.clone(), out.clone()
        return out
"""
# With this many rows, most calls leave the first one as it was.
WHERE = {"cpu": "16", "cuda": "36"}
ATTACK = Attack(
    (25,),
    Form(
        {"elements": SAMPLED, "first row": ROWS},
        TWIN,
        Fails("integrity", "numeric_mismatch"),
        shapes=WHERE,
        dominant=False,
    ),
)
