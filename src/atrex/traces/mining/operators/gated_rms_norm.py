"""gated_rms_norm: rows (tokens times value heads) and a head's width."""

from __future__ import annotations

from typing import Any

from atrex.traces.mining.dims import Call, Dims, last, rows

OPS = (
    r"vllm::fla_rms_norm_gated|\w+::(rms_norm|layer_norm)_gated\w*|sglang_profiler::\w*(gated|norm_gated)\w*"
    r"|aten::(pow|mean)"
)


def dims(call: Call) -> Dims:
    x = call.matrix(OPS)
    heads = call.fixed("linear_v_heads", None).value if x is None else 1
    return {
        "rows": call.tokens(rows(x), each=heads),
        "hidden_size": call.fixed("hidden_size", last(x), "linear_v_dim"),
        "eps": call.setting("eps", None, 1e-6),
    }


def kwargs(d: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    init = {"eps": d["eps"], "norm_before_gate": True, "activation": "silu"}
    return init, {"rows": d["rows"], "hidden_size": d["hidden_size"]}
