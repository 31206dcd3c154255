"""Target DSLs: what a candidate is written in. A new DSL is a new file in this folder and nothing else."""

from atrex.dsls.base import DSL, Session, default_for, get, infer, mentioned, names, register

__all__ = ["DSL", "Session", "default_for", "get", "infer", "mentioned", "names", "register"]
