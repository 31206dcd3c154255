"""fused_moe: tokens, widths, experts. Grouped products tell most of it, whole MoE calls only their operands."""

from __future__ import annotations

from typing import Any

from atrex.traces.mining.dims import Call, Dims
from atrex.traces.mining.operators import _moe


def dims(call: Call) -> Dims:
    x, weight = call.operand(_moe.GROUPED, 0), call.operand(_moe.GROUPED, 1)
    states = call.operand(_moe.FORWARD, 0)
    hidden, inner, slots, tokens, each = None, None, None, None, None
    if x is not None and weight is not None and len(weight) == 3:
        # The first product is [slots, hidden] with [experts, hidden, 2 * inner].
        hidden, inner, slots = weight[1], weight[2] // 2, x[0]
        gathered = call.matrix(r"aten::index")
        if gathered is not None and gathered[-1] == hidden and gathered[0] and slots % gathered[0] == 0:
            tokens, each = gathered[0], slots // gathered[0]
    elif states is not None:
        tokens = states[0]
    elif (router := _moe.logits(call)) is not None:
        tokens = router[0]
    count = weight[0] if weight is not None and len(weight) == 3 else None
    top_k = _moe.top_k(call, each)
    if tokens is None and slots is not None:
        tokens = slots // top_k.value
    if hidden is None and call.config is None and states is not None:
        hidden = states[-1]  # engines pad it: where there is a configuration, the model's own width counts
    return {
        "tokens": call.tokens(tokens),
        "hidden_size": call.fixed("hidden_size", hidden),
        "intermediate_size": call.fixed("moe_intermediate_size", inner),
        "num_experts": _moe.experts(call, count),
        "top_k": top_k,
    }


def serves(call: Call) -> str | None:
    """The operator with fp8 operands scaled by blocks, whose kernels have the same names: by the experts' dtype, else
    by the application's quantization."""
    weights = [t for op in call.ops(f"{_moe.GROUPED}|{_moe.FORWARD}") for d, t in zip(op.dims, op.dtypes, strict=False)
               if isinstance(d, list) and len(d) == 3]  # fmt: skip
    if weights:
        return "fp8_blockscale_fused_moe" if any("Float8" in t for t in weights) else None
    return "fp8_blockscale_fused_moe" if call.quantization == "fp8_block" else None


def kwargs(d: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    top_k = min(d["top_k"], d["num_experts"])
    init = {"num_experts": d["num_experts"], "intermediate_size": d["intermediate_size"], "top_k": top_k}
    return init, {"token_count": d["tokens"], "hidden_size": d["hidden_size"], **init}
