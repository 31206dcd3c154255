"""unified_attention: new tokens and cached ones of a batch, prompts and single tokens together; heads; page size.

Engines tell the sums over a step's sequences, not each length: `kwargs` divides them evenly.
"""

from __future__ import annotations

from typing import Any

from atrex.traces.mining.dims import Call, Dim, Dims, Unknown
from atrex.traces.mining.operators import _attention
from atrex.traces.mining.operators._attention import divided
from atrex.traces.phases import DECODE, PREFILL


def dims(call: Call) -> Dims:
    found = _attention.dense(call)
    if found is not None:
        return {
            "requests": Dim(found.batch, "traced", "requests"),
            "tokens": Dim(found.batch * found.queries, "traced", "tokens"),
            "cached": Dim(found.batch * max(0, found.keys - found.queries), "traced", "context"),
            "decoding": Dim(0, "traced", "requests"),
            "decoding_cached": Dim(0, "traced", "context"),
            "num_heads": Dim(found.heads, "traced"),
            "num_kv_heads": Dim(found.kv_heads, "traced"),
            "head_dim": Dim(found.size, "traced"),
            "block_size": call.block_size(None),
        }
    total, heads, kv_heads, size = _attention.packed(call)
    pages = next((d for op in call.ops(r"_C_cache_ops::reshape_and_cache_flash") for d in op.dims
                  if isinstance(d, list) and len(d) == 4), None)  # fmt: skip
    return {
        **_batch(call, total),
        "num_heads": call.fixed("num_heads", heads),
        "num_kv_heads": call.fixed("num_kv_heads", kv_heads),
        "head_dim": call.fixed("head_dim", size),
        "block_size": call.block_size(pages[1] if pages is not None else None),
    }


def _batch(call: Call, total: int | None) -> Dims:
    step, typical = call.group.step, call.typical
    if call.group.phase == DECODE:
        requests = call.requests(None, DECODE)
        context = call.context(None, requests.value)
        cached = (context.value - 1) * requests.value
        return {
            "requests": Dim(0, "traced", "requests"), "tokens": Dim(0, "traced", "tokens"),
            "cached": Dim(0, "traced", "context"), "decoding": requests,
            "decoding_cached": Dim(cached, context.source, "context"),
        }  # fmt: skip
    requests = call.requests(None, PREFILL)
    decoding = step.get("generation_requests", 0)
    if call.group.operator == "attention_forward" and ("paged_attention_decode", call.group.phase) in call.ran:
        decoding = 0  # single tokens have a kernel of their own in these steps
    if step.get("context_tokens"):
        tokens = Dim(step["context_tokens"], "traced", "tokens")
    elif total is not None:
        tokens = Dim(max(requests.value, total - decoding), "traced", "tokens")
    else:
        tokens = call.tokens(None)
    cached = Dim(0, "typical", "context")
    if step.get("context_kv"):
        cached = Dim(max(0, step["context_kv"] - tokens.value), "traced", "context")
    elif typical.context:
        cached = Dim(typical.context * requests.value, "typical", "context")
    held = step.get("generation_kv") if decoding else None
    if decoding and held is None:
        if call.app.typical.get("decode") is None or call.app.typical["decode"].context is None:
            raise Unknown("context: the step does not say what decoding requests hold, and fleet.yaml has no "
                          "typical.decode.context")  # fmt: skip
        old = Dim(call.app.typical["decode"].context * decoding, "typical", "context")
    else:
        old = Dim(max(0, (held or 0) - decoding), "traced", "context")
    return {
        "requests": requests, "tokens": tokens, "cached": cached,
        "decoding": Dim(decoding, "traced", "requests"), "decoding_cached": old,
    }  # fmt: skip


def kwargs(d: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    new = divided(d["tokens"], d["requests"]) + divided(d["decoding"], d["decoding"])
    old = divided(d["cached"], d["requests"]) + divided(d["decoding_cached"], d["decoding"])
    found = {
        "num_seqs": d["requests"] + d["decoding"],
        "seq_lens": new,
        "num_query_heads": d["num_heads"],
        "num_kv_heads": d["num_kv_heads"],
        "head_size": d["head_dim"],
        "block_size": d["block_size"],
    }
    return {}, found if not any(run["length"] for run in old) else {**found, "context_lens": old}
