"""The judge: compile, correctness and performance gates around a worker process that it does not trust.

The package is also the Python call: ``atrex.evaluate(candidate, problem, shapes=..., device=...)``.
"""

from __future__ import annotations

import sys
import types


class _CallablePackage(types.ModuleType):
    def __call__(self, *args, **kwargs):
        from atrex.evaluate.api import evaluate

        return evaluate(*args, **kwargs)


sys.modules[__name__].__class__ = _CallablePackage
