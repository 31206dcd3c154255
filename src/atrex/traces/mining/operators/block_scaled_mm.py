"""block_scaled_mm: rows of activations, and the weight's two dimensions, which only operands tell apart by layer."""

from __future__ import annotations

from typing import Any

from atrex.traces.mining.dims import Call, Dims, Unknown, last, rows

OPS = (
    r"vllm::(w8a8_triton_block_scaled_mm_func|fp8_gemm_nt_op|rocm_aiter_gemm_a8w8_blockscale|cutlass_scaled_mm_blockwise)"
    r"|sglang_profiler::fp8_utils_\w*blockscale\w*|sgl_kernel::fp8_blockwise_scaled_mm|sglang::\w*fp8_gemm\w*"
    r"|aiter::gemm_a8w8_blockscale\w*"
)


def dims(call: Call) -> Dims:
    a, weight = call.operand(OPS, 0), call.operand(OPS, 1)
    if a is None or weight is None or len(weight) != 2:
        raise Unknown("n and k: only operands tell a layer's weight from another's, record with shapes")
    k = last(a)
    n = weight[0] if weight[1] == k else weight[1]
    return {
        "tokens": call.tokens(rows(a)),
        "n": call.fixed("n", n),
        "k": call.fixed("k", k),
        "group_n": call.setting("group_n", None, 128),
        "group_k": call.setting("group_k", None, 128),
    }


def kwargs(d: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    groups = {"group_n": d["group_n"], "group_k": d["group_k"]}
    return groups, {"m": d["tokens"], "n": d["n"], "k": d["k"], **groups}
