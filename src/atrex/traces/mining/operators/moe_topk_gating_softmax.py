"""moe_topk_gating_softmax: the router's logits and how many experts a token takes."""

from __future__ import annotations

from typing import Any

from atrex.traces.mining.dims import Call, Dims
from atrex.traces.mining.operators import _moe


def dims(call: Call) -> Dims:
    router = _moe.logits(call)
    return {
        "tokens": call.tokens(router[0] if router is not None else None),
        "num_experts": call.fixed("num_experts", router[1] if router is not None else None),
        "top_k": _moe.top_k(call, _moe.chosen(call)),
    }


def kwargs(d: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    return {"top_k": min(d["top_k"], d["num_experts"])}, {"token_count": d["tokens"], "num_experts": d["num_experts"]}
