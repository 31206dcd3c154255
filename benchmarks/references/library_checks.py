"""Kernels of libraries that are called as their baselines call them, and in no other way."""

from __future__ import annotations

from benchmarks.references.baseline_checks import from_baseline
from benchmarks.references.registry import OTHER, PRODUCTION

from atrex.baselines import get

for name, kind, prefix in (
    ("liger", OTHER, "Liger "),
    ("quack", OTHER, "QuACK "),
    ("flashinfer", PRODUCTION, "FlashInfer "),
    ("aiter", PRODUCTION, "AITER "),
):
    from_baseline(get(name), kind, prefix)
