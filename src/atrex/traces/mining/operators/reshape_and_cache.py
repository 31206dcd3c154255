"""reshape_and_cache: new tokens, heads of keys, a head's size, tokens of a page."""

from __future__ import annotations

from typing import Any

from atrex.traces.mining.dims import Call, Dims

HEADS = r"_C_cache_ops::reshape_and_cache\w*|vllm::unified_kv_cache_update|sglang_profiler::memory_pool__set_kv\w*"
FLAT = r"sglang::store_cache"


def dims(call: Call) -> Dims:
    key = call.matrix(HEADS, rank=3)
    flat = call.matrix(FLAT) if key is None else None
    pages = next((d for op in call.ops(HEADS) for d in op.dims if isinstance(d, list) and len(d) == 4), None)
    size = key[2] if key is not None else None
    if flat is not None:
        width = call.fixed("head_dim", None).value
        key = [flat[0], flat[1] // width, width]
        size = width
    return {
        "tokens": call.tokens(None if key is None else key[0]),
        "num_kv_heads": call.fixed("num_kv_heads", None if key is None else key[1]),
        "head_dim": call.fixed("head_dim", size),
        "block_size": call.block_size(pages[1] if pages is not None else None),
    }


def kwargs(d: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    return {}, {"shape": [d["tokens"], d["num_kv_heads"], d["head_dim"]], "block_size": d["block_size"]}
