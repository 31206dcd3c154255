"""paged_attention_decode: sequences, tokens that each holds, heads, page size."""

from __future__ import annotations

from typing import Any

from atrex.traces.mining.dims import Call, Dim, Dims
from atrex.traces.mining.operators import _attention


def dims(call: Call) -> Dims:
    found = _attention.dense(call)
    if found is not None:
        return {
            "requests": Dim(found.batch, "traced", "requests"),
            "context": Dim(found.keys, "traced", "context"),
            "num_heads": Dim(found.heads, "traced"),
            "num_kv_heads": Dim(found.kv_heads, "traced"),
            "head_dim": Dim(found.size, "traced"),
            "block_size": call.block_size(None),
            "dtype": call.setting("dtype", call.dtype(_attention.DENSE), "bf16"),
        }
    tokens, heads, kv_heads, size = _attention.packed(call)
    # A request of speculative decoding has several tokens, and a captured batch has padding.
    requests = call.requests(call.group.step.get("generation_requests") or tokens)
    return {
        "requests": requests,
        "context": call.context(None, requests.value),
        "num_heads": call.fixed("num_heads", heads),
        "num_kv_heads": call.fixed("num_kv_heads", kv_heads),
        "head_dim": call.fixed("head_dim", size),
        "block_size": call.block_size(None),
        "dtype": call.setting("dtype", call.dtype(_attention.PACKED), "bf16"),
    }


def kwargs(d: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    return {}, {
        "num_seqs": d["requests"],
        "ctx_len": d["context"],
        "num_query_heads": d["num_heads"],
        "num_kv_heads": d["num_kv_heads"],
        "head_size": d["head_dim"],
        "block_size": d["block_size"],
        "dtype": d["dtype"] if d["dtype"] in ("bf16", "fp16") else "bf16",
    }
