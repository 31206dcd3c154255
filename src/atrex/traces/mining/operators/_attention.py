"""What the attention operators read alike: heads and lengths from PyTorch's operators or from an engine's."""

from __future__ import annotations

from dataclasses import dataclass

from atrex.traces.mining.dims import Call
from atrex.traces.phases import DECODE

# Operands [batch, heads, length, size].
DENSE = (
    r"aten::(scaled_dot_product_attention|_scaled_dot_product_(flash|efficient|cudnn)_attention"
    r"|_scaled_dot_product_attention_math|_scaled_dot_product_fused_attention_overrideable)"
)
# Operands [tokens, heads, size], lengths elsewhere.
PACKED = (
    r"vllm::unified_attention(_with_output)?|sglang_profiler::(mha|attention|decode)_\w+|_vllm_fa[23]_C::(varlen_)?fwd"
    r"|aiter::(mha_batch_prefill|mha_varlen_fwd|fmha_v3_varlen_fwd|paged_attention\w*|pa_decode\w*)"
    r"|flash_attn::_flash_attn_varlen_forward|_rocm_C::paged_attention"
)
_REPEATED = r"aten::(reshape|clone|copy_|expand)"
CAUSAL, MASK = 5, 3  # arguments of scaled_dot_product_attention


@dataclass(frozen=True)
class Dense:
    """One call of PyTorch's attention. `causal`: None where the trace does not say."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    size: int
    causal: bool | None
    masked: bool


def dense(call: Call) -> Dense | None:
    q, k = call.operand(DENSE, 0), call.operand(DENSE, 1)
    if q is None or k is None or len(q) != 4 or len(k) != 4:
        return None
    heads, kv_heads = q[1], k[1]
    for op in call.ops(_REPEATED):  # keys and values that were repeated for it: [batch, heads, repeats, length, size]
        for shape in op.dims:
            if isinstance(shape, list) and len(shape) == 5 and shape[1] * shape[2] == heads and shape[2] > 1:
                kv_heads = shape[1]
    causal = call.flag(r"aten::scaled_dot_product_attention", CAUSAL)
    masked = call.operand(r"aten::scaled_dot_product_attention", MASK) is not None
    return Dense(q[0], heads, kv_heads, q[2], k[2], q[3], causal, masked)


def packed(call: Call) -> tuple[int | None, int | None, int | None, int | None]:
    """(tokens, heads, kv heads, size) of an engine's attention operator; None where it has no operands."""
    q, k = call.operand(PACKED, 0), call.operand(PACKED, 1)
    if q is None or len(q) != 3:
        return None, None, None, None
    return q[0], q[1], k[-2] if k is not None and len(k) >= 3 else None, q[2]


def serves(call: Call) -> str | None:
    """Which operator's problem expresses an attention call: causal prompts and mixed batches over a cache, or single
    tokens over one; None for bidirectional attention."""
    found = dense(call)
    if found is not None:
        if found.queries == 1:
            return "paged_attention_decode"
        grouped = found.kv_heads != found.heads
        return "unified_attention" if found.causal or found.masked or grouped else None
    if any("Vision" in m or "Visual" in m or "ViT" in m for m in call.group.modules):
        return None
    return "paged_attention_decode" if call.group.phase == DECODE else "unified_attention"


def divided(total: int, count: int) -> list[dict[str, int]]:
    """`total` over `count` sequences, as evenly as whole tokens allow, as runs of equal lengths."""
    if not count:
        return []
    each, more = divmod(total, count)
    runs = [{"count": more, "length": each + 1}, {"count": count - more, "length": each}]
    return [run for run in runs if run["count"]]
