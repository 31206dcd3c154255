"""silu_and_mul: rows, and the width of gate and value together."""

from __future__ import annotations

import math
from typing import Any

from atrex.traces.mining.dims import Call, Dim, Dims, rows

FUSED = r"_C::silu_and_mul\w*|sgl_kernel::silu_and_mul|sglang::_run_activation_inplace|aiter::silu_and_mul"
PARTS = r"aten::(silu_?|mul_?)"  # eager code multiplies on afterwards: each half is an operand


def dims(call: Call) -> Dims:
    both = _widest(call, FUSED)
    if both is None and (half := call.matrix(PARTS)) is not None:
        both = [*half[:-1], 2 * half[-1]]
    if both is not None:
        return {"tokens": call.tokens(rows(both)), "width": call.fixed("width", both[-1])}
    experts = "moe_intermediate_size" if any("Expert" in m or "MoE" in m for m in call.group.modules) else None
    half = call.fixed("intermediate_size", None, experts)
    return {"tokens": call.tokens(None), "width": Dim(2 * half.value, half.source)}


def _widest(call: Call, pattern: str) -> list[int] | None:
    """The operand that holds gate and value: the largest; outputs hold half of it."""
    found = [d for op in call.ops(pattern) for d in op.dims if isinstance(d, list) and len(d) >= 2]
    return max(found, key=math.prod, default=None)


def kwargs(d: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    return {}, {"shape": [d["tokens"], d["width"]]}
