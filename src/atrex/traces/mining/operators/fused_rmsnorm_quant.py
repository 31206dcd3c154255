"""fused_rmsnorm_quant: rows and width of what is normalized and quantized."""

from __future__ import annotations

from typing import Any

from atrex.traces.mining.dims import Call, Dims, last, rows

OPS = (
    r"_C::(rms_norm|fused_add_rms_norm)_\w*quant\w*|aiter::(rms_?norm|add_rmsnorm)\w*quant\w*"
    r"|vllm::rocm_aiter_rmsnorm\w*quant\w*|sglang_profiler::\w*rmsnorm\w*quant\w*"
)


def dims(call: Call) -> Dims:
    x = call.matrix(OPS)
    return {"tokens": call.tokens(rows(x)), "hidden_size": call.fixed("hidden_size", last(x))}


def kwargs(d: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    return {}, {"token_count": d["tokens"], "hidden_size": d["hidden_size"]}
