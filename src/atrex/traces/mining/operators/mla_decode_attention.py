"""mla_decode_attention: sequences, tokens that each holds, heads, the latent's two parts."""

from __future__ import annotations

from typing import Any

from atrex.traces.mining.dims import Call, Dims

OPS = (
    r"vllm::(unified_mla_attention\w*|rocm_aiter_mla_decode_fwd)|_C::sm100_cutlass_mla_decode|_flashmla_C::\w+"
    r"|aiter::mla_decode\w*|sglang_profiler::\w*mla_decode\w*"
)


def dims(call: Call) -> Dims:
    q = call.matrix(OPS, rank=3)
    requests = call.requests(None if q is None else q[0])
    return {
        "requests": requests,
        "context": call.context(None, requests.value),
        "num_heads": call.fixed("num_heads", None if q is None else q[1]),
        "kv_lora_rank": call.fixed("kv_lora_rank", None),
        "qk_rope_head_dim": call.fixed("qk_rope_head_dim", None),
    }


def kwargs(d: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    heads = {"nhead": d["num_heads"], "kv_lora_rank": d["kv_lora_rank"], "qk_rope_head_dim": d["qk_rope_head_dim"]}
    return heads, {"batch_size": d["requests"], "ctx_len": d["context"], **heads}
