"""moe_topk_gating_softmax: the router's logits and how many experts a token takes."""

from __future__ import annotations

from typing import Any

from atrex.traces.mining.dims import Call, Dims
from atrex.traces.mining.operators import _moe


def dims(call: Call) -> Dims:
    router = _moe.logits(call)
    copied = [d for op in call.ops(r"aten::copy_") for d in op.dims if isinstance(d, list) and len(d) == 2]
    chosen = [d[1] for d in copied if router is not None and d[0] == router[0] and d[1] < router[1]]
    return {
        "tokens": _moe.tokens(call),
        "num_experts": _moe.experts(call),
        "top_k": _moe.top_k(call, chosen[0] if chosen else None),
    }


def kwargs(d: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    return {"top_k": min(d["top_k"], d["num_experts"])}, {"token_count": d["tokens"], "num_experts": d["num_experts"]}
