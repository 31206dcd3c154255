"""`tuner`: no model. A template's knobs are found in its syntax tree and searched by measuring.

`knobs` and `search` are pure; `bench` is the handle on the measuring program in a jail (`measure`).
"""

from __future__ import annotations

from atrex.agents.tuner.agent import Tuner

__all__ = ["Tuner"]
