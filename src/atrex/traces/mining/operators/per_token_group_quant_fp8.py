"""per_token_group_quant_fp8: rows and width of what is quantized, a scale for each group of a row."""

from __future__ import annotations

from typing import Any

from atrex.traces.mining.dims import Call, Dims, last, rows

OPS = (
    r"_C::per_token_group_fp8_quant|vllm::(triton_)?per_token_group_quant_fp8|aiter::dynamic_per_group_scaled_quant\w*"
    r"|sgl_kernel::sgl_per_token_group_quant\w*|sglang_profiler::\w*per_token_group_quant\w*"
)


def dims(call: Call) -> Dims:
    x = call.matrix(OPS)
    return {
        "tokens": call.tokens(rows(x)),
        "hidden_size": call.fixed("hidden_size", last(x)),
        "group_size": call.setting("group_k", None, 128),
    }


def kwargs(d: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    return {"group_size": d["group_size"]}, {"token_count": d["tokens"], "hidden_size": d["hidden_size"]}
