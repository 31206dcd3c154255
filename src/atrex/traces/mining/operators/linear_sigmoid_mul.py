"""linear_sigmoid_mul: rows and width of what is gated, the gate's features, the columns that it multiplies."""

from __future__ import annotations

from typing import Any

from atrex.traces.mining.dims import Call, Dims, Unknown, last, rows

OPS = r"sgl_kernel::fused_linear_sigmoid_mul|sglang_profiler::\w*linear_sigmoid_mul\w*"


def dims(call: Call) -> Dims:
    x, weight, gated = call.operand(OPS, 0), call.operand(OPS, 1), None
    for index in (3, 2):
        found = call.operand(OPS, index)
        gated = gated or (found if found is not None and len(found) >= 2 else None)
    if x is None or weight is None or gated is None:
        raise Unknown("out_features and columns: only operands give them, record with shapes")
    features = weight[0] if weight[-1] == last(x) else weight[-1]
    return {
        "tokens": call.tokens(rows(x)),
        "hidden_size": call.fixed("hidden_size", last(x)),
        "out_features": call.fixed("out_features", features),
        "columns": call.fixed("columns", last(gated)),
    }


def kwargs(d: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    found = {"token_count": d["tokens"], "hidden_size": d["hidden_size"], "out_features": d["out_features"]}
    return {}, found if d["columns"] == d["out_features"] else {**found, "columns": d["columns"]}
