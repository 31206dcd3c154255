"""Target DSLs: what a candidate is written in. One module a DSL; a new file in this folder is all that a new one needs."""

from atrex.dsls.base import DSL, Session, default_for, get, infer, names, register

__all__ = ["DSL", "Session", "default_for", "get", "infer", "names", "register"]
