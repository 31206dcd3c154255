"""Operands of a shape on a device that is not here: integers with their values, the rest fake."""

from __future__ import annotations

import torch

from atrex.compile.device import DEVICE
from atrex.compile.values import FLOAT_LIMITS, KnownValues
from atrex.dsls.offline import Undetermined
from atrex.errors import UserError
from atrex.problems.dtypes import Fp8Encoding
from atrex.problems.model import Problem, Shape

_SEED = 0


def operands(problem: Problem, shape: Shape, values: KnownValues, fp8: Fp8Encoding) -> dict[str, torch.Tensor]:
    """The shape's inputs, drawn by the problem's own function inside `values.fake()`.

    Few floating values are drawn, since few matter: only where integers depend on more are more drawn. Raises
    UserError when the function fails.
    """
    for limit in FLOAT_LIMITS:
        values.drawing, values.float_limit = True, limit
        try:
            drawn = problem.make_inputs(shape, _SEED, "cpu", fp8)
        except UserError as error:
            if isinstance(error.__cause__, Undetermined) and limit != FLOAT_LIMITS[-1]:
                continue
            raise
        finally:
            values.drawing, values.float_limit = False, FLOAT_LIMITS[0]
        if all(t.is_floating_point() or values.value(t) is not None for t in drawn.values()):
            break
    mutates = set(problem.metadata.mutates)
    placed = {}
    for name, tensor in drawn.items():
        placed[name] = on_device = tensor.to(DEVICE)
        if tensor.is_floating_point():
            values.forget(on_device)
        elif name not in mutates:
            values.keep(on_device)
    return placed
