"""fused_qk_rmsnorm: tokens, heads of queries and keys, a head's width."""

from __future__ import annotations

from typing import Any

from atrex.traces.mining.dims import Call, Dims

OPS = r"sglang::fused_inplace_qknorm|sglang_profiler::utils_apply_qk_norm\w*|\w+::fused_qk_?(rms)?norm\w*"


def dims(call: Call) -> Dims:
    q, k = call.operand(OPS, 0), call.operand(OPS, 1)
    size = call.vector(OPS)
    if q is not None and len(q) == 3:
        heads, kv_heads, size = q[1], k[1] if k is not None and len(k) == 3 else None, q[2]
    else:
        heads = q[-1] // size if q is not None and size else None
        kv_heads = k[-1] // size if k is not None and size else None
    return {
        "tokens": call.tokens(None if q is None else q[0]),
        "num_heads": call.fixed("num_heads", heads),
        "num_kv_heads": call.fixed("num_kv_heads", kv_heads),
        "head_dim": call.fixed("head_dim", size),
        "dtype": call.setting("dtype", call.dtype(OPS), "bf16"),
    }


def kwargs(d: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    heads = {"head_num": d["num_heads"], "kv_head_num": d["num_kv_heads"], "size_per_head": d["head_dim"]}
    return heads, {
        "num_tokens": d["tokens"],
        **heads,
        "dtype": d["dtype"] if d["dtype"] in ("bf16", "fp16") else "bf16",
    }
