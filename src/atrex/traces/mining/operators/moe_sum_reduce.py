"""moe_sum_reduce: [tokens, experts of each, width] that is summed."""

from __future__ import annotations

from typing import Any

from atrex.traces.mining.dims import Call, Dims
from atrex.traces.mining.operators import _moe


def dims(call: Call) -> Dims:
    slots = call.matrix(_moe.SLOTS, rank=3)
    tokens, each, hidden = slots if slots is not None and len(slots) == 3 else (None, None, None)
    return {
        "tokens": _moe.tokens(call, tokens),
        "top_k": call.fixed("top_k", each),
        "hidden_size": call.fixed("hidden_size", hidden),
        "routed_scaling_factor": call.setting("routed_scaling_factor", None, 1.0),
    }


def kwargs(d: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    init = {"routed_scaling_factor": float(d["routed_scaling_factor"])}
    return init, {"token_count": d["tokens"], "top_k": d["top_k"], "hidden_size": d["hidden_size"]}
