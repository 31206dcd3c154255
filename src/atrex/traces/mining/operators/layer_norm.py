"""layer_norm: rows and width of what is normalized."""

from __future__ import annotations

from typing import Any

from atrex.traces.mining.dims import Call, Dims, last, rows

OPS = r"aten::(native_layer_norm|layer_norm)|aiter::layernorm\w*|vllm::\w*layer_norm\w*"


def dims(call: Call) -> Dims:
    x = call.matrix(OPS)
    return {"tokens": call.tokens(rows(x)), "hidden_size": call.fixed("hidden_size", last(x))}


def kwargs(d: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    return {}, {"shape": [d["tokens"], d["hidden_size"]]}
