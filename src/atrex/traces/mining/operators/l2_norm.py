"""l2_norm: rows and width of what is scaled to unit length; heads of keys where nothing says it."""

from __future__ import annotations

from typing import Any

from atrex.traces.mining.dims import Call, Dims, last, rows

OPS = r"\w+::l2_?norm\w*|sglang_profiler::\w*l2norm\w*"


def dims(call: Call) -> Dims:
    x = call.matrix(OPS)
    heads = call.fixed("linear_k_heads", None).value if x is None else 1
    return {
        "rows": call.tokens(rows(x), each=heads),
        "hidden_size": call.fixed("hidden_size", last(x), "linear_k_dim"),
    }


def kwargs(d: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    return {"hidden_size": d["hidden_size"]}, {"num_tokens": d["rows"], "hidden_size": d["hidden_size"]}
