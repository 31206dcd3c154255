"""What the operators of a mixture of experts read alike: tokens, experts, how many each token takes, widths."""

from __future__ import annotations

from atrex.traces.mining.dims import Call, Dim

FORWARD = (
    r"vllm::(moe_forward(_shared)?|fused_experts|(in|out)place_fused_experts|rocm_aiter_fused_moe)"
    r"|sglang_profiler::(core_trtllm_bf16_moe|fused_moe)\w*|sglang::(moe_forward|fused_moe)\w*|aiter::(fused_moe|fmoe)\w*"
)
GROUPED = r"aten::_?grouped_mm"
LOGITS = (
    r"aten::(softmax|_softmax|topk|sigmoid)|TopK|aiter::(topk_softmax|biased_grouped_topk)\w*"
    r"|_moe_C::topk_softmax|(common_ops|sgl_kernel)::(topk_softmax|moe_fused_gate)|vllm::rocm_aiter_grouped_topk"
)
SLOTS = r"aten::(sum|topk|index_add_?)|_moe_C::(moe_sum|moe_align_block_size)|common_ops::moe_sum_reduce"


def logits(call: Call) -> list[int] | None:
    """[tokens, experts] of the router, which the whole MoE call takes as its second operand."""
    found = call.operand(FORWARD, 1) or call.matrix(LOGITS)
    return found if found is not None and len(found) == 2 else None


def tokens(call: Call, traced: int | None = None) -> Dim:
    router = logits(call)
    return call.tokens(traced if traced is not None else None if router is None else router[0])


def experts(call: Call, traced: int | None = None) -> Dim:
    router = logits(call)
    return call.fixed("num_experts", traced if traced is not None else None if router is None else router[1])


def top_k(call: Call, traced: int | None = None) -> Dim:
    """Experts a token takes. Configured counts go first: traced ones come from operands of many meanings."""
    if call.config is not None and (found := call.config.get("top_k")):
        return Dim(found, "configured")
    return call.fixed("top_k", traced)
