"""moe_align_block_size: tokens, experts, how many each token takes, slots of a block of the expert kernel."""

from __future__ import annotations

from typing import Any

from atrex.traces.mining.dims import Call, Dims
from atrex.traces.mining.operators import _moe

OPS = r"_moe_C::moe_align_block_size|(common_ops|sgl_kernel)::moe_align_block_size"


def dims(call: Call) -> Dims:
    ids = call.operand(OPS, 0)
    each = ids[1] if ids is not None and len(ids) == 2 else None
    block, count = call.number(OPS, 2), call.number(OPS, 1)
    return {
        "tokens": _moe.tokens(call, ids[0] if each else None),
        "num_experts": _moe.experts(call, None if count is None else int(count)),
        "top_k": _moe.top_k(call, each),
        "block_size": call.setting("moe_block_size", None if block is None else int(block), 128),
    }


def kwargs(d: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    init = {"block_size": d["block_size"], "num_experts": d["num_experts"]}
    top_k = min(d["top_k"], d["num_experts"])
    return init, {"token_count": d["tokens"], "num_experts": d["num_experts"], "top_k": top_k}
