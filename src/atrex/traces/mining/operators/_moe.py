"""What the operators of a mixture of experts read alike: tokens, experts, how many each token takes, widths."""

from __future__ import annotations

from dataclasses import dataclass

from atrex.traces.mining.dims import Call, Dim

# (hidden states, router logits)
FORWARD = r"vllm::(moe_forward(_shared)?|rocm_aiter_fused_moe)|sglang::(moe_forward|fused_moe)\w*"
# (hidden states, w1 [experts, 2 * inner, hidden], w2 [experts, hidden, inner], weights, ids [tokens, k])
FUSED = r"vllm::((in|out)place_)?fused_experts|sglang_profiler::fused_moe\w*|aiter::(fused_moe|fmoe)\w*"
# (router logits, bias, hidden states, w1 [experts, hidden / 64, 2 * inner, 64])
TRTLLM = r"sglang_profiler::core_trtllm_bf16_moe\w*"
# (hidden states, w1, w2 [experts, hidden, inner], ..., out [tokens, k, inner])
STAGED = r"aiter::ck_moe_stage1"
GROUPED = r"aten::_?grouped_mm"
LOGITS = (
    r"aten::(softmax|_softmax|topk|sigmoid)|TopK|aiter::(topk_softmax|biased_grouped_topk)\w*"
    r"|_moe_C::topk_softmax|(common_ops|sgl_kernel)::(topk_softmax|moe_fused_gate)|vllm::rocm_aiter_grouped_topk"
)
SLOTS = r"aten::(sum|topk|index_add_?)|_moe_C::(moe_sum|moe_align_block_size)|common_ops::moe_sum_reduce"
_PACKED = ("unsigned char", "signed char", "int", "short int")  # several values an element: widths cannot be read


@dataclass(frozen=True)
class Told:
    """What operands say of a call, None where they do not. `each`: experts of a token."""

    tokens: int | None = None
    experts: int | None = None
    each: int | None = None
    hidden: int | None = None
    inner: int | None = None


def told(call: Call) -> Told:
    """What the operands of an MoE call's parts say, by the first of the known layouts."""
    grouped = call.operand(GROUPED, 0), call.operand(GROUPED, 1)
    if grouped[0] is not None and grouped[1] is not None and len(grouped[1]) == 3:
        return _grouped(call, grouped[0], grouped[1])
    if (second := call.operand(STAGED, 2)) is not None and len(second) == 3:
        states, slots = call.operand(STAGED, 0), call.operand(STAGED, 6)
        each = slots[1] if slots is not None and len(slots) == 3 else None
        return Told(states[0] if states else None, second[0], each, *_widths(call, STAGED, 2, second))
    if (second := call.operand(FUSED, 2)) is not None and len(second) == 3:
        states, ids = call.operand(FUSED, 0), call.operand(FUSED, 4)
        each = ids[1] if ids is not None and len(ids) == 2 else None
        return Told(states[0] if states else None, second[0], each, *_widths(call, FUSED, 2, second))
    if (first := call.operand(TRTLLM, 3)) is not None and len(first) == 4:
        states = call.operand(TRTLLM, 2)
        return Told(states[0] if states else None, first[0], None, states[-1] if states else None, first[2] // 2)
    states, router = call.operand(FORWARD, 0), logits(call)
    if states is not None:
        # Engines pad hidden states: where there is a configuration, the model's own width counts.
        return Told(states[0], router[1] if router else None, None, states[-1] if call.config is None else None)
    return Told(router[0], router[1]) if router is not None else Told()


def _grouped(call: Call, x: list[int], weight: list[int]) -> Told:
    """The first product of eager code: [slots, hidden] with [experts, hidden, 2 * inner], tokens gathered before."""
    experts, hidden, both = weight
    gathered = call.matrix(r"aten::index")
    if gathered is not None and gathered[-1] == hidden and gathered[0] and x[0] % gathered[0] == 0:
        return Told(gathered[0], experts, x[0] // gathered[0], hidden, both // 2)
    each = call.config.get("top_k") if call.config is not None else None
    return Told(x[0] // each if each else None, experts, each, hidden, both // 2)


def _widths(call: Call, pattern: str, index: int, second: list[int]) -> tuple[int | None, int | None]:
    """(hidden, inner) of the second weight, unless several values share an element."""
    dtypes = [op.dtypes[index] for op in call.ops(pattern) if index < len(op.dtypes)]
    return (None, None) if dtypes and dtypes[0] in _PACKED else (second[1], second[2])


def logits(call: Call) -> list[int] | None:
    """[tokens, experts] of the router: its place in a whole MoE call, else the widest operand of the choice."""
    for found in (call.operand(FORWARD, 1), call.operand(TRTLLM, 0)):
        if found is not None and len(found) == 2:
            return found
    return max(_choices(call), key=lambda d: d[1], default=None)


def _choices(call: Call) -> list[list[int]]:
    return [d for op in call.ops(LOGITS) for d in op.dims if isinstance(d, list) and len(d) == 2]


def chosen(call: Call) -> int | None:
    """Experts of a token, by the narrower operands beside the router's logits."""
    router = logits(call)
    if router is None:
        return None
    copied = [d for op in call.ops(r"aten::copy_") for d in op.dims if isinstance(d, list) and len(d) == 2]
    return next((d[1] for d in [*_choices(call), *copied] if d[0] == router[0] and d[1] < router[1]), None)


def tokens(call: Call, traced: int | None = None) -> Dim:
    return call.tokens(traced if traced is not None else told(call).tokens)


def experts(call: Call, traced: int | None = None) -> Dim:
    return call.fixed("num_experts", traced if traced is not None else told(call).experts)


def top_k(call: Call, traced: int | None = None) -> Dim:
    """Experts a token takes. Configured counts go first: traced ones come from operands of many meanings."""
    if call.config is not None and (found := call.config.get("top_k")):
        return Dim(found, "configured")
    return call.fixed("top_k", traced)
