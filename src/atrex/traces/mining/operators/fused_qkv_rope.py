"""fused_qkv_rope: tokens, heads of queries and keys, a head's width and how much of it turns."""

from __future__ import annotations

from typing import Any

from atrex.traces.mining.dims import Call, Dims

OPS = (
    r"sglang::apply_rope_inplace_with_kvcache|sglang_profiler::utils_fused_qk_rope\w*|_C::fused_qk_norm_rope"
    r"|aiter::fused_qk_rope_concat_and_cache_mla|\w+::add_fusedQKV_bias_transpose\w*"
)


def dims(call: Call) -> Dims:
    q, k = call.operand(OPS, 0), call.operand(OPS, 1)
    whole = q is not None and k is not None and len(q) == len(k) == 3
    return {
        "tokens": call.tokens(None if q is None else q[0]),
        "num_heads": call.fixed("num_heads", q[1] if whole else None),
        "num_kv_heads": call.fixed("num_kv_heads", k[1] if whole else None),
        "head_dim": call.fixed("head_dim", q[2] if whole else None),
        "rotary_dim": call.fixed("rotary_dim", q[2] if whole and call.config is None else None),
        "dtype": call.setting("dtype", call.dtype(OPS), "bf16"),
    }


def kwargs(d: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    heads = {"num_heads": d["num_heads"], "num_kv_heads": d["num_kv_heads"], "head_dim": d["head_dim"]}
    dtype = d["dtype"] if d["dtype"] in ("bf16", "fp16") else "bf16"
    return {**heads, "rope_dim": d["rotary_dim"]}, {"total_tokens": d["tokens"], **heads, "dtype": dtype}
