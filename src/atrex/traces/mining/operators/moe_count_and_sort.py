"""moe_count_and_sort: tokens, experts, how many each token takes."""

from __future__ import annotations

from typing import Any

from atrex.traces.mining.dims import Call, Dims
from atrex.traces.mining.operators import _moe
from atrex.traces.mining.operators.moe_align_block_size import kwargs as kwargs

SORTED = r"aten::(sort|argsort|histc|bincount)"
SORTERS = r"aiter::moe_sorting\w*|SortTokens"


def dims(call: Call) -> Dims:
    ids = call.operand(SORTERS, 0)
    each = ids[1] if ids is not None and len(ids) == 2 else None
    top_k = _moe.top_k(call, each)
    slots = call.vector(SORTED)
    known = ids[0] if each else slots // top_k.value if slots else None
    counts = call.vector(r"aten::cumsum")
    block: Any = None
    return {
        "tokens": _moe.tokens(call, known),
        "num_experts": _moe.experts(call, counts),
        "top_k": top_k,
        "block_size": call.setting("moe_block_size", block, 128),
    }
