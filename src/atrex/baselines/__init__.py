"""Baselines: what people run today, as candidates of known origin. A new one is a new file in this folder."""

from atrex.baselines.base import Baseline, Function, get, names

__all__ = ["Baseline", "Function", "get", "names"]
