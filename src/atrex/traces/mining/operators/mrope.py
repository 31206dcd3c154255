"""mrope: tokens, heads of queries and keys, a head's width, and the sections of its rotation."""

from __future__ import annotations

from typing import Any

from atrex.traces.mining.dims import Call, Dims, rows

OPS = r"vllm::mrope\w*|sglang_profiler::\w*mrope\w*|\w+::triton_mrope\w*"


def dims(call: Call) -> Dims:
    q, k = call.operand(OPS, 0), call.operand(OPS, 1)
    size = call.fixed("head_dim", None)
    return {
        "tokens": call.tokens(rows(q)),
        "num_heads": call.fixed("num_heads", None if q is None else q[-1] // size.value),
        "num_kv_heads": call.fixed("num_kv_heads", None if k is None else k[-1] // size.value),
        "head_dim": size,
        "rotary_dim": call.fixed("rotary_dim", None),
        "mrope_section": call.fixed("mrope_section", None),
        "mrope_interleaved": call.setting("mrope_interleaved", None, False),
    }


def kwargs(d: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    size = {"head_size": d["head_dim"], "rotary_dim": d["rotary_dim"]}
    sections = {"mrope_section": d["mrope_section"], "mrope_interleaved": d["mrope_interleaved"]}
    heads = {"num_query_heads": d["num_heads"], "num_kv_heads": d["num_kv_heads"]}
    return {**size, **sections, "is_neox_style": True}, {"token_count": d["tokens"], **heads, **size}
