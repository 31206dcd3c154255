"""The functions that reduce samples to a median replaced: they run in the judge, so nothing changes."""

from __future__ import annotations

from atrex.attacks.harness import Attack, Form, NoGain

CHEAT = """
import statistics

import numpy as np

import atrex.evaluate.stats as stats


def tiny(*args, **kwargs):
    return 1e-3


for module, names in ((statistics, ("median", "mean", "fmean")), (np, ("median", "mean", "percentile")),
                      (torch, ("median", "quantile")), (stats, ("median", "percentile"))):
    for name in names:
        setattr(module, name, tiny)
"""
TWIN = """
import statistics


class Model(Honest):
    def forward(self, x, weight):
        self.middle = statistics.median([x.shape[0], x.shape[1], self.eps])
        return rms_norm(x, weight, self.eps)
"""
ATTACK = Attack((29, 36), Form({"": CHEAT}, TWIN, NoGain()))
