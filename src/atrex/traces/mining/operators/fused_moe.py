"""fused_moe: tokens, widths, experts, and how many of them each token takes."""

from __future__ import annotations

from typing import Any

from atrex.traces.mining.dims import Call, Dims
from atrex.traces.mining.operators import _moe


def dims(call: Call) -> Dims:
    told = _moe.told(call)
    return {
        "tokens": call.tokens(told.tokens),
        "hidden_size": call.fixed("hidden_size", told.hidden),
        "intermediate_size": call.fixed("moe_intermediate_size", told.inner),
        "num_experts": call.fixed("num_experts", told.experts),
        "top_k": _moe.top_k(call, told.each),
    }


def serves(call: Call) -> str | None:
    """The operator with fp8 operands scaled by blocks, whose kernels have the same names: by the experts' dtype, else
    by the application's quantization."""
    pattern = f"{_moe.GROUPED}|{_moe.FUSED}|{_moe.STAGED}|{_moe.TRTLLM}"
    weights = [t for op in call.ops(pattern) for d, t in zip(op.dims, op.dtypes, strict=False)
               if isinstance(d, list) and len(d) >= 3]  # fmt: skip
    if weights:
        return "fp8_blockscale_fused_moe" if any("Float8" in t for t in weights) else None
    return "fp8_blockscale_fused_moe" if call.quantization == "fp8_block" else None


def kwargs(d: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    top_k = min(d["top_k"], d["num_experts"])
    init = {"num_experts": d["num_experts"], "intermediate_size": d["intermediate_size"], "top_k": top_k}
    return init, {"token_count": d["tokens"], "hidden_size": d["hidden_size"], **init}
