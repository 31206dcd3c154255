"""Atrex: is this GPU kernel production-ready?"""

from __future__ import annotations

__version__ = "0.1.0"

from atrex import evaluate

__all__ = ["__version__", "evaluate"]
