"""Atrex: is this GPU kernel production-ready?"""

from __future__ import annotations

__version__ = "0.1.0"

__all__ = ["__version__", "evaluate"]


def __getattr__(name: str):
    # `atrex.evaluate` is the judge's Python call; torch is imported only when it is used.
    if name == "evaluate":
        from atrex.evaluate.api import evaluate

        return evaluate
    raise AttributeError(name)
