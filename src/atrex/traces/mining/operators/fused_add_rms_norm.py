"""fused_add_rms_norm: rows and width of the residual stream."""

from __future__ import annotations

from typing import Any

from atrex.traces.mining.dims import Call, Dims, last, rows
from atrex.traces.mining.operators.rms_norm import kwargs as kwargs

OPS = (
    r"_C::fused_add_rms_norm|vllm_ir::fused_add_rms_norm|vllm::rocm_aiter_rmsnorm2d_fwd_with_add"
    r"|aiter::(add_rmsnorm|rmsnorm2d_fwd_with_add)(_ck)?|sgl_kernel::fused_add_rmsnorm"
    r"|sglang_profiler::(rmsnorm_rmsnorm2d_fwd_with_add|fused_add_rmsnorm)\w*"
)


def dims(call: Call) -> Dims:
    x = call.matrix(OPS)
    eps: Any = call.number(r"_C::fused_add_rms_norm", 3)
    return {
        "tokens": call.tokens(rows(x)),
        "hidden_size": call.fixed("hidden_size", last(x)),
        "eps": call.setting("eps", eps, 1e-6),
    }
