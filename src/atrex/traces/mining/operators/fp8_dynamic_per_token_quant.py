"""fp8_dynamic_per_token_quant: rows and width of what is quantized, one scale a row."""

from __future__ import annotations

from atrex.traces.mining.dims import Call, Dims, last, rows
from atrex.traces.mining.operators.fused_rmsnorm_quant import kwargs as kwargs

OPS = (
    r"_C::dynamic_per_token_scaled_fp8_quant|aiter::dynamic_per_token_scaled_quant|aiter::per_token_quant\w*"
    r"|sgl_kernel::sgl_per_token_quant_fp8|sglang_profiler::\w*per_token_quant\w*"
)


def dims(call: Call) -> Dims:
    x = call.matrix(OPS)
    return {"tokens": call.tokens(rows(x)), "hidden_size": call.fixed("hidden_size", last(x))}
